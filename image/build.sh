#!/bin/sh
# Builds koordgate's image with the container engine of this machine, and writes its list of Python packages (CycloneDX).
#   IMAGE      the image's name and tag (required)
#   BASE       an image with Python 3.11 or newer, pinned by digest: NAME@sha256:... (required)
#   RUNTIME    what the image stands on, pinned likewise, with the same Python at the same path (default: BASE)
#   ENGINE     docker, podman or buildah (default: the first that is there)
#   PLATFORMS  such as linux/amd64,linux/arm64 (default: this machine's)
#   PUSH       yes: push to the registry of IMAGE
#   ARCHIVE    a file that gets the image of every platform as an OCI archive, in place of PUSH
#   UNPINNED   yes: take a BASE or RUNTIME without a digest
#   PIP_CONFIG a pip.conf for the build, such as with an index of your own; it does not come into the image
#   PIP_CA     the certificates by which the build trusts the index; likewise
#   SBOM       the file with the list (default: dist/sbom.cdx.json)
set -eu
cd "$(dirname "$0")/.."

stop() {
    echo "make image: $*" >&2
    exit 2
}

HOW='find it with: docker buildx imagetools inspect docker.io/library/python:3.13-slim (or: skopeo inspect docker://...)'
[ -n "${IMAGE:-}" ] || stop 'IMAGE is empty; as in: make image IMAGE=registry.example.com/koordgate:0.2.0 BASE=...'
[ -n "${BASE:-}" ] || stop "BASE is empty; as in: BASE=docker.io/library/python:3.13-slim@sha256:DIGEST; $HOW"
RUNTIME=${RUNTIME:-$BASE}
for name in BASE RUNTIME; do
    eval "value=\$$name"
    [ "${UNPINNED:-no}" = yes ] || expr "x$value" : 'x.*@sha256:[0-9a-f]\{64\}$' >/dev/null ||
        stop "$name is $value, which may be another image tomorrow: add its digest, as in ${value%%@*}@sha256:DIGEST (64 hexadecimal digits); $HOW; or set UNPINNED=yes"
done
case ${PUSH:-no} in yes | no) ;; *) stop "PUSH is $PUSH: set it to yes, or leave it out" ;; esac
case ${PLATFORMS:-} in
    *,*) [ "${PUSH:-no}${ARCHIVE:-}" != no ] || stop 'several PLATFORMS make several images under one name, which a registry or an archive keeps: set PUSH=yes or ARCHIVE=FILE too' ;;
esac
[ "${PUSH:-no}" = no ] || [ -z "${ARCHIVE:-}" ] || stop 'PUSH=yes and ARCHIVE exclude each other: push the archive with skopeo copy --all'

if [ -z "${ENGINE:-}" ]; then
    for ENGINE in docker podman buildah none; do
        command -v "$ENGINE" >/dev/null 2>&1 && break
    done
fi
case $ENGINE in
    docker | podman | buildah) command -v "$ENGINE" >/dev/null 2>&1 || stop "ENGINE is $ENGINE, which is not on PATH" ;;
    none) stop 'neither docker nor podman nor buildah is on PATH: install one of them' ;;
    *) stop "ENGINE is $ENGINE: set it to docker, podman or buildah" ;;
esac

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null)" ] || revision=$revision-changed
SBOM=${SBOM:-dist/sbom.cdx.json}
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT

build() {
    case $ENGINE in
        docker) docker buildx build "$@" . ;;
        podman) podman build --layers "$@" . ;;
        buildah) buildah build --layers "$@" . ;;
    esac
}

set -- --file Dockerfile --build-arg "BASE=$BASE" --build-arg "RUNTIME=$RUNTIME" \
    --build-arg "VERSION=$version" --build-arg "REVISION=$revision"
[ -z "${PIP_CONFIG:-}" ] || set -- "$@" --secret "id=pip,src=$PIP_CONFIG"
[ -z "${PIP_CA:-}" ] || set -- "$@" --secret "id=ca,src=$PIP_CA"
# The first platform's list: the packages are the same on each.
first=${PLATFORMS:-}
build "$@" ${first:+--platform "${first%%,*}"} --target sbom --output "type=local,dest=$lists"
mkdir -p "$(dirname "$SBOM")"
cp "$lists/sbom.cdx.json" "$SBOM"

set -- "$@" --target image ${PLATFORMS:+--platform "$PLATFORMS"}
# Where the image goes from here; several platforms go as one list.
target=${ARCHIVE:+oci-archive:$ARCHIVE:$IMAGE}
[ "${PUSH:-no}" = no ] || target=docker://$IMAGE
case $ENGINE,$target,${PLATFORMS:-} in
    docker,oci-archive:*) build "$@" --output "type=oci,dest=$ARCHIVE,name=$IMAGE" ;;
    docker,docker:*) build "$@" --tag "$IMAGE" --push ;;
    docker,*) build "$@" --tag "$IMAGE" --load ;;
    *,?*,*,*)
        # A list from an earlier run would get these images besides its own.
        "$ENGINE" manifest rm "$IMAGE" >/dev/null 2>&1 || true
        build "$@" --manifest "$IMAGE"
        "$ENGINE" manifest push --all "$IMAGE" "$target"
        ;;
    *,?*,*)
        build "$@" --tag "$IMAGE"
        "$ENGINE" push "$IMAGE" "$target"
        ;;
    *) build "$@" --tag "$IMAGE" ;;
esac
echo "$IMAGE is built; its Python packages are listed in $SBOM"
