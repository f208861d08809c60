# The NixOS module: services.cnlab.<service>.{enable, package, settings, environmentFile,
# checkEnvironment}.
#
# Settings are checked while the system is built: a service that would refuse its
# configuration at start refuses it before anything is switched. Secrets are not there yet
# then, so the check sees stand-ins for them; the unit checks again with the real ones.
{ self, daemons }:
{ config, lib, pkgs, ... }:
let
  toml = pkgs.formats.toml { };
  inherit (pkgs.stdenv.hostPlatform) system;

  # Environment variables `CNLAB_<SERVICE>__A__B` override the key a.b.
  variable = service: key:
    "CNLAB_${lib.toUpper (lib.replaceStrings [ "-" ] [ "_" ] service.name)}__${
      lib.toUpper (lib.replaceStrings [ "." ] [ "__" ] key)}";

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
        belong into `environmentFile`.
      '';
    };

    environmentFile = lib.mkOption {
      type = lib.types.nullOr lib.types.str;
      default = null;
      description = ''
        Absolute path of a file outside the Nix store that sets secrets as environment
        variables, at least `${variable service "common.internal_key"}`.
      '';
    };

    checkEnvironment = lib.mkOption {
      type = lib.types.attrsOf lib.types.str;
      default = { };
      description = ''
        Stand-ins, for the check while the system is built, of further variables that
        `environmentFile` sets and without which the settings would be refused.
      '';
    };
  };

  checkedConfig = service:
    let
      cfg = config.services.cnlab.${service.name};
      written = toml.generate "${service.name}.toml" cfg.settings;
      # Without a file that could set the key, its absence is a fault to be found now.
      standIns = lib.optionalAttrs (cfg.environmentFile != null) {
        ${variable service "common.internal_key"} = "stands in for the key in the environment file";
      };
    in
    pkgs.runCommand "${service.name}-checked.toml" (standIns // cfg.checkEnvironment) ''
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
