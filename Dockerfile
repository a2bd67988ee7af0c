# koordgate's image: `make image IMAGE=registry.example.com/koordgate:1 BASE=docker.io/library/python:3.13-slim@sha256:...`
#
# BASE has Python 3.11 or newer with its module venv. The image stands on RUNTIME, which needs no more than the same
# Python at the same path: no pip, no compiler, no shell. Both are BASE unless RUNTIME is given.
ARG BASE
ARG RUNTIME=${BASE}

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements.txt image/tools.txt ./
# The secrets are optional: PIP_CONFIG and PIP_CA of `make image`, for an index and a certificate of your own.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    if [ -e /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python3 -m venv /tools \
    && python3 -m venv --without-pip /opt/koordgate \
    && /tools/bin/pip install --quiet --require-hashes --only-binary :all: --requirement tools.txt \
    && /tools/bin/pip --python /opt/koordgate/bin/python install --quiet --require-hashes --only-binary :all: --requirement requirements.txt
COPY . .
# Built without isolation: hatchling is one of the tools, so that nothing is fetched without a hash. Then the list of the
# Python packages that are installed. What RUNTIME brings is in its own publisher's list.
RUN /tools/bin/python -m hatchling build --target wheel --directory /wheels \
    && /tools/bin/pip --python /opt/koordgate/bin/python install --quiet --no-deps --no-index /wheels/*.whl \
    && mkdir -p /opt/koordgate/share \
    && /tools/bin/cyclonedx-py environment --output-reproducible --output-format JSON --pyproject pyproject.toml \
        --output-file /opt/koordgate/share/sbom.cdx.json /opt/koordgate/bin/python

# Only the list: `make image` writes it to dist/.
FROM scratch AS sbom
COPY --from=build /opt/koordgate/share/sbom.cdx.json /

FROM ${RUNTIME} AS image
ARG BASE
ARG RUNTIME=${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="koordgate" \
      org.opencontainers.image.description="Fine-grained GPUs for a stock Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${RUNTIME}" \
      io.koordgate.sbom="/opt/koordgate/share/sbom.cdx.json"
COPY --from=build /opt/koordgate /opt/koordgate
# PYTHONSAFEPATH: nothing is imported from the working directory. The root may be read-only.
ENV PATH=/opt/koordgate/bin:/usr/local/bin:/usr/bin:/bin PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /
# The chart's user. The reporter's Pod sets another.
USER 65532:65532
ENTRYPOINT ["koordgate"]
