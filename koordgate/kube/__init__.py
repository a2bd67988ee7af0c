"""The Kubernetes boundary: the only package that talks to the API server, or imports kubernetes_asyncio.

Objects are plain JSON (dicts), and every failure is one of `koordgate.kube.errors`.
"""
