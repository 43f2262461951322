# For people who have a container engine. `make images` builds the same two images without one.
#
#   docker build --target caretaker -t caretaker:0.1.0 .
#   docker build --target caretaker-node -t caretaker-node:0.1.0 .
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends protobuf-compiler && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Static, because an image from scratch has no libraries.
ENV RUSTFLAGS="-Ctarget-feature=+crt-static --remap-path-prefix=/usr/local/cargo=/cargo"
RUN target=$(uname -m)-unknown-linux-gnu && \
    cargo build --locked --profile image --target "$target" --package caretaker --package caretaker-node && \
    mkdir /out && cp "target/$target/image/caretaker" "target/$target/image/caretaker-node" /out/

# Root: unmounting in the mount namespace of the node, signals to shims and the control groups that are left behind need
# it; its pod is privileged for the same reasons.
FROM scratch AS caretaker-node
COPY --from=build /out/caretaker-node /bin/caretaker-node
USER 0:0
ENTRYPOINT ["/bin/caretaker-node"]

FROM scratch AS caretaker
COPY --from=build /out/caretaker /bin/caretaker
USER 65532:65532
ENTRYPOINT ["/bin/caretaker"]
