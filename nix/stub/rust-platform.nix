# buildRustPackage with the host's Cargo and its download folder.
#
# CNLAB_NIX_TARGET_DIR  a folder that all builds share, so that a dependency is compiled once;
#                       without it each build starts from nothing
# CNLAB_NIX_PROFILE     the Cargo profile, `release` unless it says otherwise
{ lib, run }:
let
  environment = name: default:
    let value = builtins.getEnv name;
    in if value == "" then default else value;
in
{
  buildRustPackage =
    { pname
    , version
    , src
    , cargoLock
    , cargoBuildFlags
    , buildNoDefaultFeatures
    , preBuild
    , doCheck
    , meta
    }:
    let
      home = environment "HOME" "/homeless-shelter";
      # nixpkgs fetches each locked crate by its checksum, so each must have one.
      withoutChecksum = builtins.filter
        (package: package ? source && !(package ? checksum))
        (lib.importTOML cargoLock.lockFile).package;
    in
    if withoutChecksum != [ ] then
      throw "Cargo.lock has no checksum for ${(builtins.head withoutChecksum).name}"
    else if doCheck then
      throw "the stub runs no tests"
    else
      run "${pname}-${version}"
        {
          inherit pname version src preBuild;
          flags = cargoBuildFlags ++ lib.optional buildNoDefaultFeatures "--no-default-features";
          profile = environment "CNLAB_NIX_PROFILE" "release";
          shared = environment "CNLAB_NIX_TARGET_DIR" "";
          HOME = home;
          CARGO_HOME = environment "CARGO_HOME" "${home}/.cargo";
          RUSTUP_HOME = environment "RUSTUP_HOME" "${home}/.rustup";
        }
        (builtins.readFile ./cargo-build.sh)
      // { inherit meta pname version; };
}
