# The part of the tree that Cargo reads, so that a change to a page of documentation or to a
# Nix file builds nothing again.
{ lib, workspace }:
let
  root = toString ../.;

  rootFiles = [ "Cargo.toml" "Cargo.lock" "rust-toolchain.toml" ".cargo" ".cargo/config.toml" ];
  # The folders that hold members; what is beside them (docs, deploy, nix) stays out.
  memberFolders = map (member: lib.head (lib.splitString "/" member)) workspace.members;

  extensions = [
    # read by Cargo, the compiler and build scripts
    ".rs" ".toml" ".proto"
    # compiled into binaries
    ".lua" ".sql" ".css" ".js" ".mjs" ".html" ".svg" ".json" ".md"
  ];
  # Everything below a folder of these names is code or data of some crate, whatever it is called.
  wholeFolders = [ "src" "assets" "benches" "data" "golden" ];

  keep = path: type:
    let
      relative = lib.removePrefix "${root}/" (toString path);
      parts = lib.splitString "/" relative;
      inMember = lib.elem (lib.head parts) memberFolders;
    in
    if lib.elem relative rootFiles then true
    else if !inMember then false
    else if type == "directory" then lib.last parts != "target"
    else lib.any (extension: lib.hasSuffix extension relative) extensions
      || lib.any (folder: lib.elem folder parts) wholeFolders;
in
lib.cleanSourceWith {
  src = ../.;
  filter = keep;
  name = "cnlab-source";
}
