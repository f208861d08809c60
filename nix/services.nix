# The one list of what CNLab ships: a package, an app and an image follow from each entry,
# and a systemd unit and NixOS options from each entry that is a daemon.
#
#   name      Nix attribute, image name and unit name
#   package   Cargo package
#   program   its main binary
#   daemon    runs as a unit of its own
#   port      TCP port that the program listens on by default
#   image     user:          who the program is inside its image (65532 is nobody in particular)
#             extraBinaries: further binaries of the Cargo package
#             tools:         nixpkgs attributes that the program calls or reads at run time
#             command:       default arguments
let
  nonRoot = "65532:65532";
  plain = {
    user = nonRoot;
    extraBinaries = [ ];
    tools = [ ];
    command = [ "serve" ];
  };
in
[
  { name = "gateway"; package = "gateway"; program = "gateway"; daemon = true; port = 8080; image = plain; }
  { name = "scheduler-svc"; package = "scheduler-svc"; program = "scheduler-svc"; daemon = true; port = 8081; image = plain; }
  {
    name = "node-svc";
    package = "node-svc";
    program = "node-svc";
    daemon = true;
    port = 8082;
    # Root, since it makes namespaces, mounts and cgroups; it builds Python environments with
    # python3, which reach the package index over TLS.
    image = plain // {
      user = "0:0";
      tools = [ "bashInteractive" "coreutils" "python3" "cacert" ];
    };
  }
  { name = "migration-svc"; package = "migration-svc"; program = "migration-svc"; daemon = true; port = 8083; image = plain; }
  { name = "cloud-svc"; package = "cloud-svc"; program = "cloud-svc"; daemon = true; port = 8084; image = plain // { tools = [ "cacert" ]; }; }
  { name = "billing-svc"; package = "billing-svc"; program = "billing-svc"; daemon = true; port = 8085; image = plain; }
  { name = "cnlab"; package = "cnlab"; program = "cnlab"; daemon = false; port = 8080; image = plain // { tools = [ "cacert" ]; command = [ "--help" ]; }; }
]
