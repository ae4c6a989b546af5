# The results of several benchmarks (an array of arrays) as text, one line each.
def cell: if . == null then "" else tostring end;
def left($n): . + " " * ([$n - length, 0] | max);
def right($n): " " * ([$n - length, 0] | max) + .;

[["what", "unit", "value", "versus", "its value", "ratio", "runs", "wanted", ""]]
+ [.[][] | [.name, .unit, .value, .versus, .versus_value, .ratio, .runs, .wanted,
            if .met == null then "" elif .met then "met" else "MISSED" end] | map(cell)]
| . as $rows
| ($rows | transpose | map(map(length) | max)) as $width
| ($rows[] | [range(length) as $i | .[$i] | if [2, 4, 5, 6] | index($i) then right($width[$i]) else left($width[$i]) end]
   | join("  ") | sub(" +$"; "")),
  ""
