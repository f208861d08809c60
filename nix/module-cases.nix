# Machines that use the NixOS module, to see that it takes what it should and nothing else.
#
#   accepted.NAME   builds: the service's own defaults
#   refused.NAME    does not build: a setting that the service does not know
{ self, nixpkgs, system, daemons }:
let
  inherit (nixpkgs) lib;

  # The start command names the checked configuration, so building its text checks it.
  startCommand = service: settings:
    let
      machine = nixpkgs.lib.nixosSystem {
        modules = [
          self.nixosModules.default
          {
            nixpkgs.hostPlatform = system;
            services.cnlab.${service.name} = {
              enable = true;
              inherit settings;
            };
          }
        ];
      };
    in
    nixpkgs.legacyPackages.${system}.writeText "${service.name}-start"
      machine.config.systemd.services.${service.name}.serviceConfig.ExecStart;

  each = settings:
    lib.listToAttrs (map (service: lib.nameValuePair service.name (startCommand service settings)) daemons);
in
{
  accepted = each { };
  refused = each { a_key_that_no_service_knows = true; };
}
