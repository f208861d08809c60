# What `nix flake check` builds: every program answers `version`, and the NixOS module accepts
# each service's own defaults.
{ pkgs, services, packages, cases }:
let
  inherit (pkgs) lib;

  answersVersion = service: pkgs.runCommand "${service.name}-version" { } ''
    ${packages.${service.name}}/bin/${service.program} version > "$out"
    grep -F ${lib.escapeShellArg packages.${service.name}.version} "$out"
  '';
in
lib.listToAttrs (map (service: lib.nameValuePair "${service.name}-version" (answersVersion service)) services)
// lib.mapAttrs' (name: accepted: lib.nameValuePair "${name}-module" accepted) cases.accepted
