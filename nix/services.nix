# The one list of what CNLab ships: a package, an app and an image follow from each entry,
# and a systemd unit and NixOS options from each entry that is a daemon.
#
#   name      Nix attribute, image name and unit name
#   package   Cargo package
#   program   its main binary
#   daemon    runs as a unit of its own
#   port      TCP port that the program listens on by default
#   tools     nixpkgs attributes that the program calls or reads at run time
#   image     user:          who the program is inside its image (65532 is nobody in particular)
#             extraBinaries: further binaries of the Cargo package
#             command:       default arguments
let
  nonRoot = "65532:65532";
  plain = {
    user = nonRoot;
    extraBinaries = [ ];
    command = [ "serve" ];
  };
in
[
  { name = "gateway"; package = "gateway"; program = "gateway"; daemon = true; port = 8080; tools = [ ]; image = plain; }
  { name = "scheduler-svc"; package = "scheduler-svc"; program = "scheduler-svc"; daemon = true; port = 7101; tools = [ ]; image = plain; }
  {
    name = "node-svc";
    package = "node-svc";
    program = "node-svc";
    daemon = true;
    port = 7102;
    # It builds Python environments, which reach the package index over TLS, and gives
    # notebooks a shell.
    tools = [ "bashInteractive" "coreutils" "python3" "cacert" ];
    # Root, since it makes namespaces, mounts and cgroups.
    image = plain // { user = "0:0"; };
  }
  { name = "migration-svc"; package = "migration-svc"; program = "migration-svc"; daemon = true; port = 7103; tools = [ ]; image = plain; }
  { name = "cloud-svc"; package = "cloud-svc"; program = "cloud-svc"; daemon = true; port = 7104; tools = [ "cacert" ]; image = plain; }
  { name = "billing-svc"; package = "billing-svc"; program = "billing-svc"; daemon = true; port = 7105; tools = [ ]; image = plain; }
  { name = "cnlab"; package = "cnlab"; program = "cnlab"; daemon = false; port = 8080; tools = [ "cacert" ]; image = plain // { command = [ "--help" ]; }; }
]
