# The functions of nixpkgs.lib that ../ uses, with the same meaning.
let
  inherit (builtins)
    attrNames concatMap concatStringsSep elem filter head isList isString length
    listToAttrs map match split stringLength substring tail throw;

  lib = rec {
    inherit (builtins)
      concatStringsSep elem filter head isList listToAttrs mapAttrs replaceStrings tail;
    isBool = builtins.isBool;

    # lists
    any = builtins.any;
    optional = condition: value: if condition then [ value ] else [ ];
    last = list: builtins.elemAt list (length list - 1);
    findFirst = predicate: default: list:
      let found = filter predicate list;
      in if found == [ ] then default else head found;

    # attribute sets
    nameValuePair = name: value: { inherit name value; };
    genAttrs = names: f: listToAttrs (map (name: nameValuePair name (f name)) names);
    mapAttrs' = f: set: listToAttrs (mapAttrsToList f set);
    mapAttrsToList = f: set: map (name: f name set.${name}) (attrNames set);
    optionalAttrs = condition: set: if condition then set else { };

    # text
    boolToString = value: if value then "true" else "false";
    concatStrings = concatStringsSep "";
    toUpper =
      let letters = text: filter (letter: isString letter && letter != "") (split "" text);
      in replaceStrings (letters "abcdefghijklmnopqrstuvwxyz") (letters "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    concatMapStrings = f: list: concatStrings (map f list);
    optionalString = condition: text: if condition then text else "";
    hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
    hasSuffix = suffix: text:
      let surplus = stringLength text - stringLength suffix;
      in surplus >= 0 && substring surplus (stringLength suffix) text == suffix;
    removePrefix = prefix: text:
      if hasPrefix prefix text then substring (stringLength prefix) (stringLength text) text else text;
    # The separator is a plain character without a meaning in regular expressions.
    splitString = separator: text: filter isString (split separator text);
    escapeShellArg = text: "'${replaceStrings [ "'" ] [ "'\\''" ] text}'";

    # files
    importTOML = path: builtins.fromTOML (builtins.readFile path);
    cleanSourceWith = { src, filter, name }: builtins.path { path = src; inherit filter name; };

    # facts
    licenses.asl20 = { spdxId = "Apache-2.0"; };
    platforms.linux = [ "x86_64-linux" "aarch64-linux" ];

    # modules
    inherit (import ./modules.nix { inherit lib; })
      evalModules literalExpression mkEnableOption mkIf mkMerge mkOption types;
  };
in
lib
