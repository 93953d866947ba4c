// SPDX-License-Identifier: Apache-2.0
#include "backend/front/host_turns.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace bulkhead::front {

Host hostOf(const sockaddr_storage& address) {
    constexpr Host kIpv4 = ~Host{0} << 32;  // no host of IPv6 has such an address
    in_addr v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    if (address.ss_family == AF_INET6) {
        const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
        if (!IN6_IS_ADDR_V4MAPPED(&v6)) {
            Host network = 0;
            std::memcpy(&network, v6.s6_addr, sizeof network);
            return network;
        }
        std::memcpy(&v4, v6.s6_addr + 12, sizeof v4);
    }
    return kIpv4 | v4.s_addr;
}

HostTurns::Record* HostTurns::find(Host host) {
    const auto found = std::ranges::find(records_, host, &Record::host);
    return found == records_.end() ? nullptr : &*found;
}

HostTurns::Record& HostTurns::made(Host host) {
    if (Record* known = find(host)) return *known;
    if (records_.size() == kMost)
        records_.erase(std::ranges::min_element(
            records_, {}, [](const Record& one) { return std::pair(one.knownUntil, one.heard); }));
    records_.emplace_back().host = host;
    return records_.back();
}

HostTurns::Time HostTurns::next(Host host) const {
    const auto found = std::ranges::find(records_, host, &Record::host);
    return found == records_.end() ? Time{} : found->next;
}

void HostTurns::came(Host host, Time now) {
    Record* record = find(host);
    if (record == nullptr || now - record->heard > kForgotten) return;
    record->cameSince = true;
    record->next = now + record->wait;
}

void HostTurns::offended(Host host, Time now) {
    Record& record = made(host);
    // Several that came before the first of them offended are one offence.
    if (record.wait.count() == 0 || now - record.heard > kForgotten)
        record.wait = kShortest;
    else if (record.cameSince && now >= record.knownUntil)
        record.wait = std::min(2 * record.wait, kLongest);
    record.cameSince = false;
    record.heard = now;
    record.next = now + record.wait;
}

void HostTurns::signedIn(Host host, Time now) {
    Record& record = made(host);
    record.heard = now;
    record.knownUntil = now + kKnown;
    record.wait = std::min(record.wait, kShortest);
    record.next = std::min(record.next, now + record.wait);
}

}  // namespace bulkhead::front
