#!/usr/bin/env bash
# Checks what can be checked of the Nix files without a network, through the stub of nixpkgs in
# nix/stub. Needs `nix` (Debian's nix-bin 2.8 or newer), git, tar, flock, readelf and the host's
# Cargo.
#
#   nix/check.sh parse            every .nix file parses
#   nix/check.sh eval             the flake evaluates, its list is the workspace's, its lock is pinned,
#                                 images are not root, deploy/systemd is what nix/unit.nix says
#                                 (REWRITE=1 writes deploy/systemd instead of comparing it)
#   nix/check.sh build [NAME...]  builds each service, runs `NAME version` and compares the port of
#                                 `NAME print-config` with the list (default: all)
#   nix/check.sh module [NAME...] the NixOS module takes NAME's defaults, and refuses a setting that
#                                 NAME does not know and a machine without a key (default: all daemons)
#   nix/check.sh repro            the slim command line tool, built in two folders, is the same bytes
#
# CNLAB_NIX_DIR      where everything is built (default: target/nix); compiled dependencies stay there
# CNLAB_NIX_PROFILE  the Cargo profile (default: release)
#
# Nothing outside that folder is written: the store is a private one, made anew by every run.
set -euo pipefail

# The one place that says which nixpkgs flake.lock must name.
readonly nixpkgs_rev=531670d871c0e29724a02f3cbcac170adc65b58c
readonly nixpkgs_hash=sha256-ODZkEK9Gy50yg6h98u7KkitZ3oc/uuTFK00bh1CRdNA=

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root

say() { printf 'nix: %s\n' "$*"; }
die() {
    printf 'nix: error: %s\n' "$*" >&2
    exit 1
}

# A private store, so that no daemon, no build user and no root is needed, and nothing stays.
prepare() {
    local tool
    for tool in nix git tar flock readelf cargo; do
        command -v "$tool" > /dev/null || die "$tool is missing (apt-get install nix-bin git tar util-linux binutils; rustup for cargo)"
    done

    mkdir -p "${CNLAB_NIX_DIR:=$root/target/nix}"
    work=$(cd "$CNLAB_NIX_DIR" && pwd -P)
    exec 8> "$work/check-lock"
    flock 8
    forget_store
    mkdir -p "$work/store" "$work/state" "$work/cache" "$work/tmp"

    export NIX_STORE_DIR=$work/store NIX_STATE_DIR=$work/state/var NIX_LOG_DIR=$work/state/log
    export NIX_LOCALSTATE_DIR=$work/state NIX_CONF_DIR=$work/state/conf
    export XDG_CACHE_HOME=$work/cache TMPDIR=$work/tmp NIX_REMOTE=local
    export NIX_CONFIG='
experimental-features = nix-command flakes
build-users-group =
sandbox = false
substitute = false
flake-registry =
warn-dirty = false'
    export CNLAB_NIX_TARGET_DIR=$work/build
    export CNLAB_NIX_PROFILE=${CNLAB_NIX_PROFILE:-release}
    trap forget_store EXIT

    tree=$work/tmp/tree
    copy_tree "$tree"
    system=$(nix eval --raw --impure --expr builtins.currentSystem)
    case $verb in
        parse) return ;;
        eval) check_lock ;;
    esac
    # In the copy, the stub takes the place of nixpkgs; it is the same as to say
    # `--override-input nixpkgs path:./nix/stub` with every command.
    nix flake lock --override-input nixpkgs "path:$tree/nix/stub" "path:$tree" 2> "$work/tmp/said" || {
        cat "$work/tmp/said" >&2
        die "the stub of nixpkgs cannot be locked"
    }
}

forget_store() {
    local folder
    for folder in store state cache tmp; do
        [[ ! -e $work/$folder ]] || {
            chmod -R u+w "$work/$folder"
            rm -rf "${work:?}/$folder"
        }
    done
}

# What git knows or would add; `path:` flakes would otherwise swallow target/ too.
copy_tree() {
    mkdir -p "$1"
    if git -C "$root" rev-parse --git-dir > /dev/null 2>&1; then
        git -C "$root" ls-files -z --cached --others --exclude-standard |
            while IFS= read -r -d '' file; do
                [[ ! -e $root/$file ]] || printf '%s\0' "$file"
            done |
            tar -C "$root" --null --no-recursion -T - -cf - |
            tar -C "$1" -xf -
    else
        tar -C "$root" --exclude=./target --exclude=./.git -cf - . | tar -C "$1" -xf -
    fi
}

build() { nix build --impure --print-build-logs --no-link "$@"; }

# expect WHAT EXPECTED FOUND
expect() {
    if [[ $2 != "$3" ]]; then
        diff -u --label expected <(printf '%s\n' "$2") --label found <(printf '%s\n' "$3") >&2 || true
        die "$1 differs"
    fi
}

# names CONDITION: the services `s` of the list that fulfil a condition, one a line.
names() {
    nix eval --raw "path:$tree#lib.services" \
        --apply "list: builtins.concatStringsSep \"\n\" (map (s: s.name) (builtins.filter (s: $1) list))"
}

check_parse() {
    local file count=0
    while IFS= read -r -d '' file; do
        nix-instantiate --parse "$file" > /dev/null
        count=$((count + 1))
    done < <(find "$tree" -name '*.nix' -print0)
    say "$count files parse"
}

check_lock() {
    # shellcheck disable=SC2016 # Nix fills these in
    local facts='lock: let n = lock.nodes.nixpkgs; in "${builtins.concatStringsSep " " (builtins.attrNames lock.nodes)} ${n.locked.rev} ${n.locked.narHash}"'
    expect "flake.lock" "nixpkgs root $nixpkgs_rev $nixpkgs_hash" \
        "$(nix eval --raw --impure --expr "($facts) (builtins.fromJSON (builtins.readFile $tree/flake.lock))")"
    # Fails where the lock does not belong to the inputs of flake.nix.
    nix flake metadata --no-update-lock-file "path:$tree" > /dev/null
    say "flake.lock names nixpkgs $nixpkgs_rev"
}

# The workspace's programs are the packages in a folder directly below the root that have a
# binary, but for the tools of people who work on it.
check_list() {
    local described='list: builtins.concatStringsSep "\n" (builtins.sort builtins.lessThan list)'
    cargo metadata --no-deps --format-version 1 --locked --manifest-path "$tree/Cargo.toml" > "$work/tmp/metadata.json"
    local found listed
    # shellcheck disable=SC2016 # Nix fills these in
    found=$(nix eval --raw --impure --expr '
        let
          metadata = builtins.fromJSON (builtins.readFile '"$work/tmp/metadata.json"');
          folder = package: builtins.dirOf package.manifest_path;
          binaries = package: map (t: t.name) (builtins.filter (t: builtins.elem "bin" t.kind) package.targets);
          programs = builtins.filter
            (package:
              builtins.dirOf (folder package) == metadata.workspace_root
              && !(builtins.elem package.name [ "xtask" "cnlab-tests" ])
              && binaries package != [ ])
            metadata.packages;
          sorted = builtins.sort builtins.lessThan;
        in
        ('"$described"') (map (p: "${p.name}: ${toString (sorted (binaries p))}") programs)')
    # shellcheck disable=SC2016 # Nix fills these in
    listed=$(nix eval --raw "path:$tree#lib.services" --apply '
        list: ('"$described"') (map
          (s: "${s.package}: ${toString (builtins.sort builtins.lessThan ([ s.program ] ++ s.image.extraBinaries))}")
          list)')
    expect "the list of nix/services.nix and the workspace's binaries" "$found" "$listed"
    say "services.nix and the workspace agree: ${listed//$'\n'/, }"
}

# The source is filtered, so whatever the compiler reads must be seen to get through.
check_source() {
    local source file included missing=0 count=0
    source=$(nix eval --raw "path:$tree#packages.$system.gateway.src")
    while IFS=: read -r file included; do
        count=$((count + 1))
        [[ -e $source/$(dirname "$file")/$included ]] || {
            say "$file includes $included, which nix/source.nix leaves out"
            missing=1
        }
    done < <(cd "$source" && { grep -rHoP --include='*.rs' '\binclude(_str|_bytes)?!\(\s*"\K[^"]+' . || true; })
    [[ $missing == 0 ]] || die "the filtered source would not build"
    say "the source holds all $count files that are included by name"
}

check_images() {
    local name user all
    all=$(names true)
    for name in $all; do
        user=$(nix eval --raw "path:$tree#packages.$system.$name-image.config.User")
        [[ $user != 0:0 || $name == node-svc ]] || die "the image of $name runs as root"
        # One package of ours, whatever tools are beside it.
        nix eval --raw "path:$tree#packages.$system.$name-image.contents" --apply '
            contents: if builtins.length (builtins.filter (p: p ? version) contents) == 1 then "" else throw "more than one program in the image"'
    done
    say "no image is root except that of node-svc"
}

check_units() {
    local name daemons
    daemons=$(names s.daemon)
    for name in $daemons; do
        nix eval --raw "path:$tree#lib.units.$name" > "$work/tmp/unit"
        if [[ ${REWRITE:-} == 1 ]]; then
            cp "$work/tmp/unit" "$root/deploy/systemd/$name.service"
        else
            diff -u "$root/deploy/systemd/$name.service" "$work/tmp/unit" ||
                die "deploy/systemd/$name.service differs from nix/unit.nix (REWRITE=1 writes it)"
        fi
    done
    expect "deploy/systemd and the daemons of services.nix" \
        "$(sort <<< "$daemons")" "$(cd "$root/deploy/systemd" && for name in *.service; do echo "${name%.service}"; done | sort)"
    say "deploy/systemd is what nix/unit.nix says"
}

check_eval() {
    nix flake show --quiet "path:$tree" > /dev/null
    nix flake check --quiet --no-build "path:$tree"
    say "the flake evaluates"
    check_list
    check_source
    check_images
    check_units
}

fetch_crates() {
    cargo fetch --quiet --locked --manifest-path "$tree/Cargo.toml" --target "$(rustc -vV | sed -n 's/^host: //p')"
}

# check_port NAME: by default the daemon listens where services.nix says.
check_port() {
    local variable port
    variable=CNLAB_${1//-/_}__COMMON__INTERNAL_KEY
    port=$(nix eval --raw "path:$tree#lib.services" --apply \
        "list: toString (builtins.head (builtins.filter (s: s.name == \"$1\") list)).port")
    env "${variable^^}=stands in for the key of a deployment" nix run --impure "path:$tree#$1" -- print-config > "$work/tmp/config"
    grep -qE "^listen = \".*:$port\"" "$work/tmp/config" ||
        die "$1 does not listen on $port: $(grep listen "$work/tmp/config")"
}

# Builds each as `nix run` does, lets it say its version, and looks at its default port.
check_build() {
    local name version said daemons all="$*"
    daemons=$(names s.daemon)
    [[ -n $all ]] || all=$(names true)
    fetch_crates
    for name in $all; do
        say "building $name"
        build "path:$tree#$name"
        version=$(nix eval --impure --raw "path:$tree#packages.$system.$name.version")
        said=$(nix run --impure "path:$tree#$name" -- version)
        [[ $said == *"$version"* ]] || die "\`$name version\` said \"$said\" and not $version"
        say "nix run .#$name -- version: $said"
        if grep -qxF "$name" <<< "$daemons"; then check_port "$name"; fi
    done
}

# refuses CASE NAME WORD: the module does not build, and the service says WORD.
refuses() {
    local log=$work/tmp/refused
    if build "path:$tree#lib.moduleCases.$system.$1.$2" 2> "$log"; then
        die "the module took the case $1 of $2"
    fi
    grep -qF "$3" "$log" || {
        cat "$log" >&2
        die "the case $1 of $2 failed for another reason"
    }
    say "the module refuses $2, $1: $(grep -m 1 -F "$3" "$log")"
}

check_module() {
    local name all="$*"
    [[ -n $all ]] || all=$(names s.daemon)
    fetch_crates
    for name in $all; do
        build "path:$tree#lib.moduleCases.$system.accepted.$name"
        say "the module takes $name with its defaults"
        refuses refused "$name" a_key_that_no_service_knows
        refuses keyless "$name" common.internal_key
    done
}

# Two trees, two target folders, and not even names of the same length.
check_repro() {
    local folder program sums=()
    fetch_crates
    for folder in a another-folder; do
        export CNLAB_NIX_TARGET_DIR=$work/repro/$folder
        rm -rf "$CNLAB_NIX_TARGET_DIR"
        say "building cnlab-static in $folder"
        program=$(nix build --impure --print-build-logs --no-link --json "path:$tree#cnlab-static" |
            sed -n 's/.*"out":"\([^"]*\)".*/\1/p')/bin/cnlab
        ! grep -qaF "$work" "$program" || die "the program names the folder it was built in"
        ! readelf -lW "$program" | grep -w INTERP || die "the program is not static"
        sums+=("$(sha256sum < "$program")")
        rm -rf "$CNLAB_NIX_TARGET_DIR"
    done
    expect "the second build" "${sums[0]}" "${sums[1]}"
    say "cnlab-static built in two folders: sha256 ${sums[0]%% *} both times"
}

main() {
    [[ $# -gt 0 ]] || die "usage: nix/check.sh parse | eval | build [NAME...] | module [NAME...] | repro"
    verb=$1
    shift
    case $verb in
        parse | eval | repro) [[ $# == 0 ]] || die "$verb takes no names" ;;
        build | module) ;;
        *) die "unknown check $verb" ;;
    esac
    prepare
    "check_$verb" "$@"
}

main "$@"
