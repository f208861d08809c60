# The units as text for machines without NixOS: programs in /usr/bin, configuration in
# /etc/cnlab. deploy/systemd holds the result, and nix/check.sh compares the two.
{ lib, daemons }:
let
  valueText = value: if lib.isBool value then lib.boolToString value else toString value;

  line = key: value: "${key}=${valueText value}\n";
  lines = key: value: lib.concatMapStrings (line key) (if lib.isList value then value else [ value ]);
  section = name: entries:
    "[${name}]\n" + lib.concatStrings (lib.mapAttrsToList lines entries);

  text = service:
    let
      unit = import ./unit.nix {
        inherit lib service;
        executable = "/usr/bin/${service.program}";
        configFile = "/etc/cnlab/${service.name}.toml";
        environmentFile = "-/etc/cnlab/${service.name}.env";
      };
    in
    lib.concatStringsSep "\n" [
      "# Written by nix/check.sh from nix/unit.nix; change it there.\n"
      (section "Unit" {
        Description = unit.description;
        Documentation = unit.documentation;
        Wants = unit.wants;
        After = unit.after;
      })
      (section "Service" unit.serviceConfig)
      (section "Install" { WantedBy = unit.wantedBy; })
    ];
in
lib.listToAttrs (map (service: lib.nameValuePair service.name (text service)) daemons)
