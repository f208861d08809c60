# OCI images: one binary each, and none of them root except the one that makes sandboxes.
{ pkgs, services, packages }:
let
  inherit (pkgs) lib;

  # Who only talks to a stack needs none of its services inside.
  packageOf = service:
    if service.name == "cnlab" then packages.cnlab-static else packages.${service.name};

  build = service:
    let
      package = packageOf service;
      tools = map (tool: pkgs.${tool}) service.tools;
      owner = lib.replaceStrings [ ":" ] [ " -g " ] service.image.user;
    in
    pkgs.dockerTools.buildLayeredImage {
      name = "cnlab/${service.name}";
      tag = package.version;
      contents = [ package ] ++ tools;
      # The only folders that the program may write to.
      fakeRootCommands = ''
        install -d -m 1777 tmp
        install -d -m 0750 -o ${owner} var/lib/cnlab
      '';
      config = {
        Entrypoint = [ "${package}/bin/${service.program}" ];
        Cmd = service.image.command;
        User = service.image.user;
        WorkingDir = "/var/lib/cnlab";
        ExposedPorts = lib.optionalAttrs service.daemon { "${toString service.port}/tcp" = { }; };
        Env = lib.optional (lib.elem "cacert" service.tools)
          "SSL_CERT_FILE=${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt";
        Labels = {
          "org.opencontainers.image.title" = service.name;
          "org.opencontainers.image.description" = package.meta.description;
          "org.opencontainers.image.version" = package.version;
          "org.opencontainers.image.licenses" = "Apache-2.0";
        };
      };
    };
in
lib.listToAttrs (map (service: lib.nameValuePair "${service.name}-image" (build service)) services)
