# A machine with what docs/hosts.md says Debian needs. The image has everything installed; a container of it profiles a
# model with SME2 on and off, under emulation where the CPU has no SME2, and shows the comparison.
#   docker build --tag sme2 . && docker run --rm --volume sme2-data:/sme2/data sme2
FROM debian:12-slim

RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates g++ git make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

# Whoever mounts a folder of their own builds it with `--build-arg UID=$(id -u)`.
ARG UID=1000
RUN useradd --create-home --uid $UID sme2 && install --directory --owner sme2 /sme2
USER sme2
WORKDIR /sme2
COPY --chown=sme2 . .
# pip's downloads are of no use in the image.
RUN PIP_NO_CACHE_DIR=1 make setup

VOLUME /sme2/data
EXPOSE 3000
CMD ["make", "demo"]
