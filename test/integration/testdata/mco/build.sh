#!/bin/bash
# What the build pod's Bash does with the same inputs, as far as it matters to the
# image: a context of copies, buildah build with vfs and volumes of copies, buildah push.
set -euo pipefail
context="$HOME/context"
mkdir -p "$context/machineconfig"
cp /tmp/containerfile/Containerfile "$context"
cp /tmp/machineconfig/machineconfig.json.gz "$context/machineconfig/"
cp /etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt "$context"
volumes=()
for dir in "$ETC_PKI_ENTITLEMENT_MOUNTPOINT" "$ETC_YUM_REPOS_D_MOUNTPOINT"; do
	copy="$(mktemp -d)"
	cp -r "$dir/." "$copy"
	chmod -R 0755 "$copy"
	volumes+=("--volume=$copy:$dir:z,rw")
done
storage=(--storage-driver vfs --root "$STRATA_STORAGE_ROOT" --runroot "$HOME/run")
"$BUILDAH_BINARY" "${storage[@]}" build --isolation chroot --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --tls-verify=false \
	--authfile="$BASE_IMAGE_PULL_CREDS" --tag "$TAG" --file "$context/Containerfile" "${volumes[@]}" "$context"
"$BUILDAH_BINARY" "${storage[@]}" push --tls-verify=false --authfile="$FINAL_IMAGE_PUSH_CREDS" --digestfile=/tmp/done/digestfile "$TAG"
