# shellcheck shell=bash disable=SC2154,SC2164 # nix sets the variables; strict mode is the caller's
# Builds one package in $NIX_BUILD_TOP/source and installs its binaries, and only its own,
# into $out/bin. Runs under bash's strict mode as the builder of a derivation.

if [[ -n $shared ]]; then
    mkdir -p "$shared"
    exec 9> "$shared/lock"
    flock 9
    NIX_BUILD_TOP=$shared
fi
export CARGO_TARGET_DIR=$NIX_BUILD_TOP/target

# Cargo tells by modification times what to build again, and in the store all times are equal.
# So the copy carries the present time, and is renewed whenever the source differs.
if [[ ! -e $NIX_BUILD_TOP/source-is || $(< "$NIX_BUILD_TOP/source-is") != "$src" ]]; then
    rm -rf "$NIX_BUILD_TOP/source" "$NIX_BUILD_TOP/source-is"
    cp -r "$src" "$NIX_BUILD_TOP/source"
    chmod -R u+w "$NIX_BUILD_TOP/source"
    printf '%s\n' "$src" > "$NIX_BUILD_TOP/source-is"
fi
cd "$NIX_BUILD_TOP/source"

eval "$preBuild"

host=$(rustc -vV | sed -n 's/^host: //p')
# shellcheck disable=SC2086 # flags is a list
cargo build $flags --profile "$profile" --target "$host" --locked --offline \
    --message-format json-render-diagnostics > "$NIX_BUILD_TOP/messages"

mkdir -p "$out/bin"
sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$NIX_BUILD_TOP/messages" | while IFS= read -r binary; do
    cp "$binary" "$out/bin/"
done
