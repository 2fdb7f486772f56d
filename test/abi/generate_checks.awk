# SPDX-License-Identifier: Apache-2.0
# Writes one line for everything that one of our declaration headers declares,
# for cuda_headers_test.cc to compare with NVIDIA's header:
#
#   awk -v theirs=/path/cuda.h -v hooks="src/guard/hooks.inc ..." -f generate_checks.awk driver.h
#
#   ABI_TYPE(T)       a type of theirs too: compare its size
#   ABI_NAME(T)       declared by us without a layout
#   ABI_FIELD(T, f)   compare offset and size
#   ABI_VALUE(V)      compare the value
#   ABI_RESULT(V)     a result code of the software GPU's list
#   ABI_FUNCTION(F)   a function in one of our lists that their header declares
#   ABI_TWIN(F, base) a per-thread twin of a function that their header declares
#   ABI_ABSENT(name)  their header (an older toolkit) does not have the name
#
# What is ours alone inside one of their types: `value.align` gives the union the
# alignment that theirs gets from members that we do not declare.
#
# Generated, so that nothing we declare can be forgotten.
function has(name) { return name in known }
function emit(kind, name, rest) { if (has(name)) print kind "(" name rest ")"; else print "ABI_ABSENT(" name ")" }
function first_word(text) { sub(/^[ \t]+/, "", text); match(text, /^[A-Za-z_][A-Za-z0-9_]*/); return substr(text, RSTART, RLENGTH) }
function field_check(type, name) { if (type "." name != "CUlaunchAttribute.value.align") emit("ABI_FIELD", type, ", " name) }
BEGIN {
  while ((getline line < theirs) > 0) {
    while (match(line, /[A-Za-z_][A-Za-z0-9_]*/)) {
      known[substr(line, RSTART, RLENGTH)] = 1
      line = substr(line, RSTART + RLENGTH)
    }
  }
  n = split(hooks, file, " ")
  for (i = 1; i <= n; i++)
    while ((getline line < file[i]) > 0)
      if (match(line, /^GPUMUX_RESULT\([A-Z0-9_]+/)) {
        name = substr(line, RSTART, RLENGTH); sub(/^.*\(/, "", name)
        emit("ABI_RESULT", name, "")
      } else if (match(line, /^GPUMUX_(NVML_)?(HOOK|USE)\([A-Za-z0-9_]+/) || match(line, /^  X\([A-Za-z0-9]+, "cu[A-Za-z0-9_]+/)) {
        name = substr(line, RSTART, RLENGTH); sub(/^.*[("]/, "", name)
        # A per-thread twin is declared only as a macro of its base name, and has its signature.
        base = name; sub(/_pt[ds][sz]$/, "", base)
        if (!(name in printed)) {
          if (!has(name) && has(base)) print "ABI_TWIN(" name ", " base ")"; else emit("ABI_FUNCTION", name, "")
        }
        printed[name] = 1
      }
}
{ sub(/\/\/.*$/, "") }
/^using CU[A-Za-z0-9_]+ = / || /^using nvml[A-Za-z0-9_]+ = / { emit("ABI_TYPE", $2, ""); next }
/^struct [A-Za-z0-9_]+;/ { sub(/;.*/, "", $2); emit("ABI_NAME", $2, ""); next }
/^struct [A-Za-z0-9_]+ \{/ { in_struct = $2; emit("ABI_TYPE", in_struct, ""); next }
/^enum [A-Za-z0-9_]+ : int;/ { emit("ABI_TYPE", $2, ""); next }
/^enum [A-Za-z0-9_]+ : / { in_enum = $2; emit("ABI_TYPE", in_enum, ""); next }
/^};?/ { in_struct = ""; in_enum = ""; next }
in_enum != "" && /[A-Za-z_]/ { emit("ABI_VALUE", first_word($0), ""); next }
in_struct != "" {
  if ($0 ~ /^  (struct|union) \{/) { inner = 1; fields = 0; next }
  if (inner && $0 ~ /^  \}/) {
    outer = first_word(substr($0, index($0, "}") + 1)); inner = 0
    field_check(in_struct, outer)
    for (i = 1; i <= fields; i++) field_check(in_struct, outer "." field[i])
    next
  }
  if ($0 !~ /;/) next
  line = $0; sub(/;.*$/, "", line); gsub(/\[[^]]*\]/, "", line)
  n = split(line, part, ",")
  for (i = 1; i <= n; i++) {
    name = part[i]; sub(/[ \t]+$/, "", name); sub(/^.*[ *]/, "", name)
    if (inner) field[++fields] = name; else field_check(in_struct, name)
  }
}
