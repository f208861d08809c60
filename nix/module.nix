# The NixOS module: services.cnlab.<service>.{enable, package, settings, environmentFile}.
#
# Settings are checked while the system is built: a service that would refuse its
# configuration at start refuses it before anything is switched.
{ self, daemons }:
{ config, lib, pkgs, ... }:
let
  toml = pkgs.formats.toml { };
  inherit (pkgs.stdenv.hostPlatform) system;

  optionsOf = service: {
    enable = lib.mkEnableOption "the CNLab service ${service.name}";

    package = lib.mkOption {
      type = lib.types.package;
      default = self.packages.${system}.${service.name};
      defaultText = lib.literalExpression "cnlab.packages.\${system}.${service.name}";
      description = "Package that holds the program ${service.program}.";
    };

    settings = lib.mkOption {
      inherit (toml) type;
      default = { };
      description = ''
        Configuration of ${service.name}, written as TOML into the world-readable Nix store and
        checked with `${service.program} check-config` while the system is built. Secrets
        belong into files that the settings name, or into `environmentFile`.
      '';
    };

    environmentFile = lib.mkOption {
      type = lib.types.nullOr lib.types.str;
      default = null;
      description = "Absolute path of a file outside the Nix store with settings that are secret, as environment variables.";
    };
  };

  checkedConfig = service:
    let
      cfg = config.services.cnlab.${service.name};
      written = toml.generate "${service.name}.toml" cfg.settings;
    in
    pkgs.runCommand "${service.name}-checked.toml" { } ''
      ${cfg.package}/bin/${service.program} check-config --config ${written}
      cp ${written} "$out"
    '';

  unitOf = service:
    let
      cfg = config.services.cnlab.${service.name};
    in
    import ./unit.nix {
      inherit lib service;
      executable = "${cfg.package}/bin/${service.program}";
      configFile = checkedConfig service;
      inherit (cfg) environmentFile;
    }
    // { path = map (tool: pkgs.${tool}) service.tools; };
in
{
  options.services.cnlab =
    lib.listToAttrs (map (service: lib.nameValuePair service.name (optionsOf service)) daemons);

  config = lib.mkMerge (map
    (service: lib.mkIf config.services.cnlab.${service.name}.enable {
      systemd.services.${service.name} = unitOf service;
    })
    daemons);
}
