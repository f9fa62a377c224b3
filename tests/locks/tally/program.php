<?php // program.py's `sql` in PHP, by the procedures themselves: program.php SLOTS TTL PDO USER
[, $slots, $ttl, $pdo, $user] = $argv;
function connect() { global $pdo, $user; return new PDO($pdo, $user); }
function hear($word) { fwrite(STDOUT, "$word\n"); }
function call($db, $sql, ...$values) {
    $call = $db->prepare($sql);
    $call->execute($values);
    $row = $call->fetch(PDO::FETCH_NUM);
    $call->closeCursor();
    return $row;
}
function write($db, $slot, $epoch, $owner) {
    $asserts = str_starts_with($GLOBALS['pdo'], 'pgsql') ? 'SELECT' : 'CALL';
    $db->beginTransaction();
    try {
        call($db, "$asserts onedrop_assert_lock('mixed', ?, ?, ?)", $slot, $epoch, $owner);
        $db->exec("INSERT INTO work (slot, epoch) VALUES ($slot, $epoch)");
        $db->commit();
        return true;
    } catch (PDOException $error) {
        $db->rollBack();
        if (!str_contains($error->getMessage(), 'not held')) throw $error;
        return false;
    }
}
function works($db, $owner, $slot, $epoch, $kind, $secs) {
    global $ttl;
    $journal = fopen('journal', 'a');
    $say = fn($what) => fwrite($journal, "$slot $epoch $what\n");
    $end = microtime(true) + ($kind == 'late' ? $ttl + 10 : $secs);
    if ($kind == 'late') {
        $say('fenced');
        hear('began');
        while (microtime(true) < $end) {
            if (!write($db, $slot, $epoch, $owner)) return 'refused';
            usleep(50000);
        }
        return 'let through';
    }
    $file = fopen("slot.$slot", 'a');
    if (!flock($file, LOCK_EX | LOCK_NB)) { $say('twice'); return 'twice'; }
    $say('began');
    hear('began');
    if (!write($db, $slot, $epoch, $owner)) return 'refused too early';
    while (microtime(true) < $end) { $say('work'); usleep(10000); }
    return 'ok';
}
$db = connect();
while (($line = fgets(STDIN)) !== false) {
    [$kind, $millis] = explode(' ', trim($line));
    try {
        [$owner, $slot, $epoch] = call($db, "CALL onedrop_lock('mixed', ?, 300, ?)", $ttl, $slots);
        $said = works($db, $owner, $slot, $epoch, $kind, $millis / 1000);
        $held = call($db, "CALL onedrop_unlock('mixed', ?)", $owner)[0];
        hear($held || $said != 'ok' ? $said : 'lost');
    } catch (PDOException $error) {
        fwrite(STDERR, $error->getMessage() . "\n");
        hear('gone');
        $db = connect();
    }
}
