{
  description = "CNLab: a self-service platform on GPU machines that somebody already owns";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = { self, nixpkgs }: import ./nix { inherit self nixpkgs; };
}
