#include "engine/engine.hpp"

#include <unistd.h>

namespace osf::engine {

TierEngine::TierEngine(std::shared_ptr<Space> space, Disk& disk, u32 threads)
    : units_(std::move(space)), flash_(disk, units_.words.files(), units_.words.head().slots, units_.words.head().id), viewers_(units_), slots_(units_.words),
      moment_(units_, slots_), mover_(units_, viewers_, waiters_, slots_, moment_, flash_), queue_(units_, viewers_, waiters_, mover_, moment_) {
    store(units_.words.head().keeper, u64(getpid()));
    if (units_.durable) committer_.emplace(units_, viewers_, slots_, moment_, mover_, queue_, flash_, disk);
    units_.recover();
    slots_.take_all_used();
    for (u32 at = 0; at < threads; at++) threads_.emplace_back([this] { work(); });
    if (committer_) threads_.emplace_back([this] { committer_->run(); });
}

TierEngine::~TierEngine() {
    mover_.stop();
    if (committer_) committer_->stop();
    for (auto& thread : threads_) thread.join();
    committer_.reset();
    store(units_.words.head().keeper, 0);
}

void TierEngine::work() {
    Mover::Worker worker;
    std::unique_lock lock(units_.mutex);
    while (mover_.next(worker, lock)) {
        while (mover_.run(worker, lock)) queue_.wake();
        mover_.done();
        queue_.dispatch();
    }
}

// Processes

u32 TierEngine::attach(TierProcess process) {
    std::lock_guard guard(units_.mutex);
    const u32 client = viewers_.attach(std::move(process));
    queue_.attach(client);
    return client;
}

void TierEngine::detach(u32 client) {
    std::lock_guard guard(units_.mutex);
    if (!viewers_.find(client)) return;
    queue_.detach(client);
    viewers_.detach(client);
    mover_.detached(client);
    queue_.dispatch();
}

bool TierEngine::settle() {
    std::lock_guard guard(units_.mutex);
    mover_.hide_from_stopped();
    queue_.catch_up();
    const bool now = viewers_.settle();
    if (now || (viewers_.settled() && units_.room() < units_.low_water())) queue_.dispatch();  // what could not leave when it should have is tried again
    return viewers_.settled();
}

void TierEngine::armed(u32 client, u64 ticket) {
    std::lock_guard guard(units_.mutex);
    if (mover_.armed(client, ticket)) queue_.dispatch();
}

// What they do, and ask for

void TierEngine::touch(u32 client, u64 address, bool write) {
    std::lock_guard guard(units_.mutex);
    if (address < units_.data_at || units_.at(address) >= units_.count) return;
    queue_.touch(client, units_.at(address), write, now_ns());
    queue_.dispatch();
}

void TierEngine::ask(u32 client, u64 id, Want want, u64 address, u64 bytes, int priority) {
    std::lock_guard guard(units_.mutex);
    queue_.ask(client, id, want, address, bytes, priority);
}

void TierEngine::ask_many(u32 client, u64 id, std::vector<UnitRange> ranges, int priority) {
    std::lock_guard guard(units_.mutex);
    queue_.ask_many(client, id, ranges, priority);
}

void TierEngine::reorder(u32 client, u64 id, int priority) {
    std::lock_guard guard(units_.mutex);
    queue_.reorder(client, id, priority);
}

void TierEngine::cancel(u32 client, u64 id) {
    std::lock_guard guard(units_.mutex);
    queue_.cancel(client, id);
}

void TierEngine::unpin(u32 client, u64 id) {
    std::lock_guard guard(units_.mutex);
    if (Viewer* viewer = viewers_.find(client)) viewers_.unpin(*viewer, id);
    queue_.dispatch();
}

void TierEngine::hold(bool on) {
    std::lock_guard guard(units_.mutex);
    queue_.hold(on);
    queue_.dispatch();
}

void TierEngine::wait_idle() {
    std::unique_lock lock(units_.mutex);
    queue_.quiet.wait(lock, [&] { return queue_.idle(); });
}

}  // namespace osf::engine
