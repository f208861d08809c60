# The corner of NixOS that ../module.nix defines something in.
{ lib, legacyPackages }:
{ modules }:
let
  corner = {
    options = {
      nixpkgs.hostPlatform = lib.mkOption {
        type = lib.types.str;
        description = "The machine's platform.";
      };
      systemd.services = lib.mkOption {
        type = lib.types.anything;
        default = { };
        description = "Units by name.";
      };
    };
  };

  system = lib.evalModules {
    modules = [ corner ] ++ modules;
    specialArgs.pkgs = legacyPackages.${system.config.nixpkgs.hostPlatform};
  };
in
{
  inherit (system) config options;
}
