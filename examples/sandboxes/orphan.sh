#!/bin/sh
# Makes a container in the containerd of this node as an agent pod of Fast Sandbox makes it, for trying the containers
# keeper: with these labels, and with FIFOs. No pod has this uid, so that it is an orphan from the start:
#
#   sudo examples/sandboxes/orphan.sh sb-7f3a docker.io/library/alpine:3
#   sudo caretaker-node plan --node "$(hostname)"
#
# The image must be on the node (ctr --namespace k8s.io images list).
set -eu
id=$1 image=$2
exec ctr --namespace k8s.io run --detach \
  --label fast-sandbox.io/managed=true \
  --label fast-sandbox.io/agent-uid=00000000-0000-4000-8000-000000000000 \
  --label fast-sandbox.io/agent-name=pool-a-0 \
  --label fast-sandbox.io/namespace=team-a \
  --label fast-sandbox.io/sandbox-name=notebook \
  --label "fast-sandbox.io/id=$id" \
  "$image" "$id" sleep 3600
