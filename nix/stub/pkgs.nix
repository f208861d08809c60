# Builders that run bash and the host's Cargo. With --impure they see the caller's PATH and
# Cargo folders; without it they evaluate, and nothing can be built.
{ lib, system }:
let
  hostPath =
    let path = builtins.getEnv "PATH";
    in if path == "" then "/usr/bin:/bin" else path;

  # `script` runs under bash's strict mode with $out set. Its last command must not replace
  # bash: Nix kills a builder that closes its output before it ends, as coreutils do.
  run = name: environment: script: derivation (environment // {
    inherit name system;
    builder = "/bin/bash";
    args = [ "-euo" "pipefail" "-c" "${script}\nexit 0" ];
    PATH = hostPath;
  });

  runCommand = name: environment: script: run name environment script;

  writeText = name: text: run name { inherit text; passAsFile = [ "text" ]; } ''cp "$textPath" "$out"'';

  # A package that is named but never built here.
  absent = name: run name { } ''
    echo "${name} stands in for a package of nixpkgs and cannot be built" >&2
    exit 1
  '';

  rustPlatform = import ./rust-platform.nix { inherit lib run; };

  # Keeps what an image is made of, so that it can be looked at; makes no layers.
  buildLayeredImage = { name, tag, contents, fakeRootCommands, config }:
    run "${baseNameOf name}-image.json"
      {
        image = builtins.toJSON { inherit name tag config fakeRootCommands; contents = map toString contents; };
        passAsFile = [ "image" ];
      } ''cp "$imagePath" "$out"''
    // { inherit config contents; };

  tomlValue = value:
    if builtins.isAttrs value then
      "{ ${lib.concatStringsSep ", " (lib.mapAttrsToList tomlLine value)} }"
    else if builtins.isList value then "[ ${lib.concatStringsSep ", " (map tomlValue value)} ]"
    # A JSON scalar is a TOML scalar.
    else builtins.toJSON value;
  tomlLine = key: value: "${builtins.toJSON key} = ${tomlValue value}";
in
{
  inherit lib rustPlatform runCommand writeText;
  stdenv.hostPlatform = { inherit system; };
  pkgsStatic = { inherit rustPlatform; };

  mkShell = { packages }: run "shell" { tools = map toString packages; } ''echo "$tools" > "$out"'';
  dockerTools = { inherit buildLayeredImage; };
  formats.toml = { }: {
    type = lib.types.toml;
    generate = name: value: writeText name
      (lib.concatMapStrings (line: line + "\n") (lib.mapAttrsToList tomlLine value));
  };
}
// lib.genAttrs [
  "bashInteractive" "cacert" "cargo" "cargo-deny" "chromium" "clippy" "coreutils" "nginx"
  "postgresql" "python3" "redis" "rustc" "rustfmt"
] absent
