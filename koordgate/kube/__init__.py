"""The Kubernetes boundary: the only package that talks to the API server or imports kubernetes_asyncio.

What goes in and out is plain JSON (dicts); what goes wrong is one of `koordgate.kube.errors`.
"""
