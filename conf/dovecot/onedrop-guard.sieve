# The guard of store.lmtp: a message that Onedrop hands over a second time is dropped here, before
# any filter of the user runs. See docs/set-up-filters.md.
#
# Onedrop puts X-Onedrop-Copy first: a random value, another one for each copy. Dovecot remembers a
# value when a delivery has been carried out, and locks it meanwhile. So a delivery that Dovecot
# still carries out when its sender has given up keeps the next one waiting, and then this drops the
# next one. A delivery in the middle of which Dovecot died is not remembered, and passes. Mail
# without the field passes.
#
# Six days: one more than Postfix tries (maximal_queue_lifetime). Each delivery writes all that
# Dovecot remembers of the account, so a site whose Postfix tries for less may set less, in both
# places. sieve_duplicate_max_period must be longer. Run sievec and onedrop check after a change.
require ["duplicate", "index"];

if exists "X-Onedrop-Copy" {
    if duplicate :handle "onedrop" :header "X-Onedrop-Copy" :seconds 518400 {
        discard;
        stop;
    }
    # Of an account that has no home folder Dovecot remembers nothing: what stands there already
    # ("again", says Onedrop) is then taken for all of it.
    if not duplicate :handle "onedrop-account" :uniqueid "remembers" :seconds 518400 :last {
        if header :index 1 :matches "X-Onedrop-Try" "* again" {
            discard;
            stop;
        }
    }
}
