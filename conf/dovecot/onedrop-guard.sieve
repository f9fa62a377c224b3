# The guard of store.lmtp: a message that Onedrop hands over a second time is dropped here, before
# any filter of the user runs. See docs/set-up-filters.md.
#
# Onedrop puts X-Onedrop-Copy first: a random value, another one for each copy. Dovecot remembers a
# value when a delivery has been carried out, and locks it meanwhile. So a delivery that Dovecot
# still carries out when its sender has given up keeps the next one waiting, and then this drops the
# next one. Mail without the field passes.
#
# Seven days are longer than Postfix tries (five). sieve_duplicate_max_period must be longer.
require ["duplicate"];

if allof (exists "X-Onedrop-Copy",
          duplicate :handle "onedrop" :header "X-Onedrop-Copy" :seconds 604800) {
    discard;
}
