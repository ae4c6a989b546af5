# The demo's closing table, out of what its steps have left: jq -rn --argjson load .. --argjson life .. --argjson lists ..
# --argjson compare .. --argjson injured .. --argjson named .. --argjson false ..
# A step that left nothing shows as zeros.

def n: (. // 0) | round | tostring | [while(length > 0; .[:-3]) | .[-3:]] | reverse | join(",");
def ms: (. // 0) / 1000 | (if . < 10 then . * 100 | round / 100 else . * 10 | round / 10 end) | "\(.) ms";
def seconds: (. // 0) * 10 | round / 10 | "\(.) s";
def rate($count; $time): (if ($time // 0) > 0 then ($count // 0) / $time else 0 end) | n;
def row($name; $text): "  " + ($name + " " * 36)[:36] + $text;

# Of a share, a membership and a grant.
def follow($which): "share \(.[0][$which].p50 | ms), team \(.[1][$which].p50 | ms), grant \(.[2][$which].p50 | ms) (medians)";

row("tuples expected from the inventory"; $compare.expected | n),
row("tuples in the ledger"; $compare.ledger | n),
row("tuples in the store, read back"; $compare.store | n),
row("tuples that differ"; $compare.differences | n),
row("changes pending, parked"; "\($life.pending | n), \($life.parked | n)"),
row("first load"; "\($load.ledger | n) tuples in \($load.seconds | seconds), \(rate($load.ledger; $load.seconds))/s"),
row("ordinary life"; ($life.transactions.committed | n) + " transactions in \($life.seconds | seconds)"),
row(""; "\($life.changes_applied | n) tuples changed, \(rate($life.changes_applied; $life.seconds))/s"),
row(""; $life.transactions | "\(.rolled_back | n) rolled back, \(.refused | n) refused, \(.deadlocks | n) deadlocks"),
row("commit to applied"; $life.commit_to_applied_us | "p50 \(.p50 | ms), p99 \(.p99 | ms) (\(.n | n) measured)"),
row("events seen by a NATS subscriber";
    "\([$load.events, $life.events] | add | n), missed \([$load.event_gaps, $life.event_gaps] | add | n)"),
row("lists of three people, compared"; "\($lists.walks | length) walks, \($lists.rows | n) rows on \($lists.pages | n) pages, \($lists.lists_that_differ | n) differ"),
row("revoked: row gone from the list"; $lists.changes | follow("gone_us")),
row("granted: row in the list"; $lists.changes | follow("back_us")),
row("injuries, of seven kinds"; "\($injured | n), named with their cause \($named | n), false findings \($false | n)"),
row("total time"; "\($total) s")
