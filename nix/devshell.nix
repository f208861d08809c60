# Everything that `cargo xtask test` and `cargo xtask lint` ask for.
{ pkgs }:
pkgs.mkShell {
  packages = [
    # compiler and lints; nixpkgs nixos-26.05 ships the toolchain of rust-toolchain.toml
    pkgs.cargo
    pkgs.rustc
    pkgs.rustfmt
    pkgs.clippy
    pkgs.cargo-deny
    # real peers of the tests
    pkgs.redis
    pkgs.postgresql
    pkgs.chromium
    pkgs.nginx
    pkgs.python3
  ];
}
