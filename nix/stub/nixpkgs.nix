# What this proves: the flake evaluates, its list, units and images are what they should be,
# the NixOS module merges and checks settings, and each package's source, flags and path remap
# really build with the host's Cargo.
# What it does not prove: that nixpkgs itself agrees. Functions here are stricter than their
# namesakes (an argument that is not known is an error), never more lenient.
let
  lib = import ./lib.nix;
  systems = [ "x86_64-linux" "aarch64-linux" ];
  legacyPackages = lib.genAttrs systems (system: import ./pkgs.nix { inherit lib system; });
in
{
  inherit legacyPackages;
  lib = lib // {
    nixosSystem = import ./nixos.nix { inherit lib legacyPackages; };
  };
}
