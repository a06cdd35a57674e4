#include "net/roster.hpp"

namespace osf::net {

u64 hosts_hash(const std::vector<std::string>& hosts) {
    std::string all;
    for (auto& host : hosts) all += host + "\n";
    return hash_bytes(all.data(), all.size(), hosts.size());
}

Roster::Roster(std::vector<std::string> hosts, u64 realm)
    : agreed_(realm), realm_(realm ? realm : hosts_hash(hosts)), hosts_(std::move(hosts)), terms_(hosts_.size()) {}

std::string Roster::host(u32 number) const {
    std::lock_guard guard(mutex_);
    return hosts_[number];
}

std::string Roster::label(u32 number) const {
    const std::string known = host(number);
    return known.empty() ? "number " + std::to_string(number) : known;
}

void Roster::check(u32 number, u64 term) const {
    if (admits(number, term)) return;
    const u64 known = this->term(number);
    throw Error(Code::host_lost, term > known && term > epoch() ? "the caller has joined, but this host has not heard of it yet"
                                                                : "the others have given the caller up since it joined; it has to join again");
}

void Roster::ask_for(u64 epoch) {
    for (u64 known = asked_for_; known < epoch && !asked_for_.compare_exchange_weak(known, epoch);) {}
}

bool Roster::change(const std::vector<std::string>& hosts, const std::vector<u64>& terms, u64 epoch) {
    std::lock_guard guard(mutex_);
    if (!agreed_ || hosts.size() != hosts_.size() || terms.size() != hosts_.size())
        throw Error(Code::bad_input, "this list of " + std::to_string(hosts_.size()) + " hosts cannot become one of " + std::to_string(hosts.size()));
    if (epoch < epoch_) return false;
    for (size_t at = 0; at < hosts.size(); at++)
        if (!hosts_[at].empty() && hosts_[at] != hosts[at])
            throw Error(Code::bad_input, "place " + std::to_string(at) + " is that of " + hosts_[at] + ", and cannot become that of " + hosts[at]);
    hosts_ = hosts;
    for (size_t at = 0; at < terms.size(); at++) terms_[at].store(terms[at], std::memory_order_release);
    epoch_.store(epoch, std::memory_order_release);
    return true;
}

}  // namespace osf::net
