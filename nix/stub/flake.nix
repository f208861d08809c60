{
  description = "A stand-in for nixpkgs that needs no network: the few attributes that ../ uses";

  outputs = { self }: import ./nixpkgs.nix;
}
