# Machines that use the NixOS module, to see that it takes what it should and nothing else.
#
#   accepted.NAME   builds: the service's own defaults, and a file for its secrets
#   refused.NAME    does not build: also a setting that the service does not know
#   keyless.NAME    does not build: nothing says where the key of the deployment comes from
{ self, nixpkgs, system, daemons }:
let
  inherit (nixpkgs) lib;

  # The start command names the checked configuration, so building its text checks it.
  startCommand = service: options:
    let
      machine = nixpkgs.lib.nixosSystem {
        modules = [
          self.nixosModules.default
          {
            nixpkgs.hostPlatform = system;
            services.cnlab.${service.name} = options // { enable = true; };
          }
        ];
      };
    in
    nixpkgs.legacyPackages.${system}.writeText "${service.name}-start"
      machine.config.systemd.services.${service.name}.serviceConfig.ExecStart;

  each = options:
    lib.listToAttrs (map (service: lib.nameValuePair service.name (startCommand service options)) daemons);

  environmentFile = "/run/keys/cnlab.env";
in
{
  accepted = each { inherit environmentFile; };
  refused = each { inherit environmentFile; settings.a_key_that_no_service_knows = true; };
  keyless = each { };
}
