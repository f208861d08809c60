# The systemd unit of one daemon, shared by the NixOS module and by deploy/systemd, so that
# the two cannot drift apart.
#
#   service          an entry of services.nix
#   executable       path of its program
#   configFile       path of its TOML file
#   environmentFile  path of a file with secrets as environment variables, or null; a path that
#                    starts with "-" may be missing
{ lib, service, executable, configFile, environmentFile }:
let
  # Notebooks are children of node-svc, run as users of their own in namespaces of their own,
  # and outlive it: whatever would hide devices, mounts, cgroups or host names from them has no
  # place here. That includes ProtectClock, which closes every device it does not name.
  sandboxMaker = {
    User = "root";
    Delegate = true;
    KillMode = "process";
    OOMPolicy = "continue";
    RuntimeDirectoryPreserve = true;
    TasksMax = "infinity";
    LimitNOFILE = 1048576;
  };

  confined = {
    DynamicUser = true;
    UMask = "0077";
    LockPersonality = true;
    ProtectClock = true;
    ProtectHostname = true;
    RestrictRealtime = true;
    RestrictSUIDSGID = true;
    NoNewPrivileges = true;
    CapabilityBoundingSet = "";
    AmbientCapabilities = "";
    PrivateDevices = true;
    PrivateTmp = true;
    PrivateUsers = true;
    ProtectSystem = "strict";
    ProtectHome = true;
    ProtectProc = "invisible";
    ProcSubset = "pid";
    ProtectControlGroups = true;
    ProtectKernelLogs = true;
    ProtectKernelModules = true;
    ProtectKernelTunables = true;
    MemoryDenyWriteExecute = true;
    RestrictNamespaces = true;
    RestrictAddressFamilies = "AF_INET AF_INET6 AF_UNIX";
    RemoveIPC = true;
    SystemCallFilter = [ "@system-service" "~@privileged @resources" ];
    SystemCallErrorNumber = "EPERM";
    LimitNOFILE = 65536;
  };
in
{
  description = "CNLab ${service.name}";
  documentation = [ "https://cnlab.ai" ];
  wants = [ "network-online.target" ];
  after = [ "network-online.target" ];
  wantedBy = [ "multi-user.target" ];

  serviceConfig = {
    Type = "exec";
    ExecStartPre = "${executable} check-config --config ${configFile}";
    ExecStart = "${executable} serve --config ${configFile}";
    Restart = "on-failure";
    RestartSec = "2s";
    TimeoutStopSec = "60s";

    StateDirectory = "cnlab/${service.name}";
    StateDirectoryMode = "0750";
    WorkingDirectory = "%S/cnlab/${service.name}";
    RuntimeDirectory = "cnlab/${service.name}";
    SystemCallArchitectures = "native";
  }
  // (if service.image.user == "0:0" then sandboxMaker else confined)
  // lib.optionalAttrs (environmentFile != null) { EnvironmentFile = environmentFile; };
}
