# One derivation per line of services.nix, and the slim static command line tool.
#
# Tests are not run here: they need real peers (Redis, Postgres, Chromium), and `cargo xtask
# test` runs them.
{ pkgs, services }:
let
  inherit (pkgs) lib;

  workspace = (lib.importTOML ../Cargo.toml).workspace;
  inherit (workspace.package) version;
  src = import ./source.nix { inherit lib workspace; };

  # A binary must not know where it was built: two folders give the same bytes. This flag
  # replaces what the build platform's Cargo configuration sets, so static linking is said too.
  remapPaths = { static }: ''
    export RUSTFLAGS="--remap-path-prefix=$NIX_BUILD_TOP=/build --remap-path-prefix=''${CARGO_HOME:-$HOME/.cargo}=/cargo${lib.optionalString static " -C target-feature=+crt-static"}"
  '';

  build = { rustPlatform, service, pname ? service.name, features ? true, static ? false }:
    rustPlatform.buildRustPackage {
      inherit pname version src;
      cargoLock.lockFile = ../Cargo.lock;
      cargoBuildFlags = [ "-p" service.package ];
      buildNoDefaultFeatures = !features;
      preBuild = remapPaths { inherit static; };
      doCheck = false;
      meta = {
        description = (lib.importTOML (manifestOf service)).package.description;
        license = lib.licenses.asl20;
        mainProgram = service.program;
        platforms = lib.platforms.linux;
      };
    };

  # The workspace names folders, Cargo names packages.
  manifestOf = service:
    let
      manifests = map (member: ../. + "/${member}/Cargo.toml") workspace.members;
    in
    lib.findFirst
      (manifest: (lib.importTOML manifest).package.name == service.package)
      (throw "services.nix names the package ${service.package}, which is no member of the workspace")
      manifests;

  cnlab = lib.findFirst (service: service.name == "cnlab") (throw "services.nix has no cnlab") services;
in
lib.listToAttrs
  (map
    (service: lib.nameValuePair service.name (build {
      inherit (pkgs) rustPlatform;
      inherit service;
    }))
    services)
// {
  cnlab-static = build {
    inherit (pkgs.pkgsStatic) rustPlatform;
    service = cnlab;
    pname = "cnlab-static";
    features = false;
    static = true;
  };
}
