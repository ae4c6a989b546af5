# One result: see result() in bench/lib.sh. Numbers keep four digits.
def short: if . == null or . == 0 then . else
    ("1e\(3 - (fabs | log10 | floor))" | tonumber) as $p | (. * $p | round) / $p end;

(if $theirs == null or $theirs == 0 then null else $value / $theirs end) as $ratio
| {name: $name, unit: $unit, value: ($value | short), versus: (if $versus == "" then null else $versus end),
   versus_value: ($theirs | short), ratio: ($ratio | short), runs: $runs}
+ if $rule == "-" then {wanted: null, met: null}
  elif $rule == "ratio>=" then {wanted: "at least \($limit) x", met: ($ratio >= $limit)}
  elif $rule == "ratio<=" then {wanted: "at most \($limit) x", met: ($ratio <= $limit)}
  elif $rule == "value<=" then {wanted: "at most \($limit)", met: ($value <= $limit)}
  elif $rule == "more<=" then {wanted: "at most \($limit) more", met: ($value - $theirs <= $limit)}
  else error("no such rule: \($rule)") end
| if .met == false and $reason != "" then .reason = $reason else . end
