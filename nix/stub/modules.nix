# A module system that is just large enough for ../module.nix: options are declared once,
# definitions are merged by type, and a definition without an option is an error.
{ lib }:
let
  inherit (builtins)
    all attrNames concatMap filter foldl' hasAttr head isAttrs isBool isFloat isFunction isInt
    isList isString length map mapAttrs tail toJSON;

  kindOf = value: if isAttrs value then value._type or "plain" else "plain";

  mkMerge = contents: { _type = "merge"; inherit contents; };
  mkIf = condition: content: { _type = "if"; inherit condition content; };
  mkOption = { type, default ? throw "option without a value", defaultText ? null, description }:
    { _type = "option"; inherit type default description; };
  mkEnableOption = what: mkOption {
    type = types.bool;
    default = false;
    description = "Whether to enable ${what}.";
  };
  literalExpression = text: { _type = "literalExpression"; inherit text; };

  # A type is a test of one definition and a way to merge several.
  one = path: values:
    if all (value: value == head values) values then head values
    else throw "${path} has conflicting definitions";
  scalar = name: check: { inherit name check; merge = one; };

  anythingMerge = path: values:
    if all (value: isAttrs value && kindOf value == "plain" && !(value ? outPath)) values
    then
      builtins.zipAttrsWith (name: definitions: anythingMerge "${path}.${name}" definitions) values
    else if all isList values then builtins.concatLists values
    else one path values;

  tomlValue = value:
    isBool value || isInt value || isFloat value || isString value
    || (isList value && all tomlValue value)
    || (isAttrs value && all tomlValue (builtins.attrValues value));

  types = {
    bool = scalar "boolean" isBool;
    str = scalar "string" isString;
    package = scalar "package" (value: isAttrs value && value ? outPath);
    nullOr = inner: {
      name = "null or ${inner.name}";
      check = value: value == null || inner.check value;
      merge = one;
    };
    attrsOf = inner: {
      name = "attribute set of ${inner.name}";
      check = value: isAttrs value && all inner.check (builtins.attrValues value);
      merge = path: builtins.zipAttrsWith (name: inner.merge "${path}.${name}");
    };
    anything = { name = "anything"; check = value: true; merge = anythingMerge; };
    # What pkgs.formats.toml calls its type.
    toml = { name = "TOML value"; check = value: isAttrs value && tomlValue value; merge = anythingMerge; };
  };

  # The definitions at a path. Conditions are carried along and looked at last: they may
  # themselves depend on options elsewhere.
  definitionsAt = path: definition:
    let kind = kindOf definition;
    in
    if kind == "merge" then concatMap (definitionsAt path) definition.contents
    else if kind == "if" then
      map (found: found // { wanted = definition.condition && found.wanted; }) (definitionsAt path definition.content)
    else if path == [ ] then [{ wanted = true; value = definition; }]
    else if isAttrs definition && hasAttr (head path) definition then
      definitionsAt (tail path) definition.${head path}
    else [ ];

  mergeOptions = path: declarations:
    builtins.zipAttrsWith
      (name: found:
        let here = path ++ [ name ];
        in
        if all (entry: kindOf entry == "plain") found then mergeOptions here found
        else if length found == 1 then head found
        else throw "${lib.concatStringsSep "." here} is declared twice")
      declarations;

  evalModules = { modules, specialArgs }:
    let
      args = specialArgs // { inherit lib config; };
      load = module: if isFunction module then module args else module;
      normal = module:
        let loaded = load module;
        in
        if loaded ? options || loaded ? config
        then { options = loaded.options or { }; config = loaded.config or { }; }
        else { options = { }; config = loaded; };
      all' = map normal modules;

      options = mergeOptions [ ] (map (module: module.options) all');
      definitions = map (module: module.config) all';

      valueOf = path: option:
        let
          name = lib.concatStringsSep "." path;
          found = map (entry: entry.value)
            (filter (entry: entry.wanted) (concatMap (definitionsAt path) definitions));
          wrong = filter (value: !(option.type.check value)) found;
        in
        if found == [ ] then option.default
        else if wrong != [ ] then throw "${name} is no ${option.type.name}"
        else option.type.merge name found;

      # Every name that is defined below a path must be declared there.
      undeclared = path: declared:
        filter (name: !(hasAttr name declared))
          (concatMap (entry: attrNames entry.value) (concatMap (definitionsAt path) definitions));

      configAt = path: declared:
        let
          unknown = undeclared path declared;
          value = mapAttrs
            (name: entry:
              let here = path ++ [ name ];
              in if kindOf entry == "option" then valueOf here entry else configAt here entry)
            declared;
        in
        if unknown == [ ] then value
        else throw "there is no option ${lib.concatStringsSep "." (path ++ [ (head unknown) ])}";

      config = configAt [ ] options;
    in
    { inherit config options; };
in
{
  inherit evalModules literalExpression mkEnableOption mkIf mkMerge mkOption types;
}
