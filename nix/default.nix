# The flake's outputs, one file per concern.
{ self, nixpkgs }:
let
  inherit (nixpkgs) lib;

  services = import ./services.nix;
  daemons = lib.filter (service: service.daemon) services;
  systems = [ "x86_64-linux" "aarch64-linux" ];

  forEachSystem = f: lib.genAttrs systems (system: f system nixpkgs.legacyPackages.${system});

  packagesOf = forEachSystem (system: pkgs: import ./packages.nix { inherit pkgs services; });
  imagesOf = forEachSystem (system: pkgs: import ./images.nix {
    inherit pkgs services;
    packages = packagesOf.${system};
  });
  moduleCases = forEachSystem (system: pkgs: import ./module-cases.nix {
    inherit self nixpkgs system daemons;
  });
in
{
  packages = forEachSystem (system: pkgs:
    packagesOf.${system}
    // imagesOf.${system}
    // { default = packagesOf.${system}.cnlab; });

  apps = forEachSystem (system: pkgs:
    let
      appOf = service: {
        type = "app";
        program = "${packagesOf.${system}.${service.name}}/bin/${service.program}";
        meta.description = packagesOf.${system}.${service.name}.meta.description;
      };
      apps = lib.listToAttrs (map (service: lib.nameValuePair service.name (appOf service)) services);
    in
    apps // { default = apps.cnlab; });

  checks = forEachSystem (system: pkgs: import ./checks.nix {
    inherit pkgs services;
    packages = packagesOf.${system};
    cases = moduleCases.${system};
  });

  devShells = forEachSystem (system: pkgs: { default = import ./devshell.nix { inherit pkgs; }; });

  nixosModules.default = import ./module.nix { inherit self daemons; };

  lib = {
    inherit services moduleCases;
    # The text of deploy/systemd/NAME.service.
    units = import ./units.nix { inherit lib daemons; };
  };
}
