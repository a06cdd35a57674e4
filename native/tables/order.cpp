#include "tables/order.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "simd/choose.hpp"

namespace osf::tables {

// By digits of 11 bits, the lowest first: as many passes as the largest id has digits. Few ids are sorted by comparing.
std::vector<Ordered> in_order(const Ids& ids) {
    std::vector<Ordered> order(ids.count), other;
    for (u64 at = 0; at < ids.count; at++) order[at] = {ids[at], u32(at), 0};
    if (ids.count < 512) {
        std::sort(order.begin(), order.end(), [](const Ordered& a, const Ordered& b) { return a.row != b.row ? a.row < b.row : a.position < b.position; });
        return order;
    }
    constexpr u32 BITS = 11;
    const u32 width = u32(std::bit_width(ids.largest()));
    other.resize(ids.count);
    for (u32 shift = 0; shift < width; shift += BITS) {
        u64 starts[1 << BITS] = {};
        auto digit = [&](const Ordered& one) { return one.row >> shift & ((1 << BITS) - 1); };
        for (const Ordered& one : order) starts[digit(one)]++;
        u64 sum = 0;
        for (u64& start : starts) sum += std::exchange(start, sum);
        for (const Ordered& one : order) other[starts[digit(one)]++] = one;
        order.swap(other);
    }
    return order;
}

RowGradients::RowGradients(const Update& update, u64 dim, std::string title) : update_(update), dim_(dim), title_(std::move(title)) {
    if (update.offsets.at) share_out();
    if (update.winners) keep_winners();
    else order_ = in_order(update.ids);
    for (u64 at = 0; at < order_.size(); at++)
        if (!at || order_[at].row != order_[at - 1].row) firsts_.push_back(at);
    firsts_.push_back(order_.size());
    const float* by = update.mean ? factors_.data() : update.weights;
    at_.assign(order_.size() + 16, reinterpret_cast<const char*>(update.gradients));
    if (by) weights_.resize(order_.size());
    for (u64 at = 0; at < order_.size(); at++) {
        const u64 position = order_[at].position;
        at_[at] = reinterpret_cast<const char*>(update.gradients + (update.offsets.at ? bag_of_[position] : position) * update.stride);
        if (by) weights_[at] = by[position];
    }
}

void RowGradients::share_out() {
    bag_of_.resize(update_.ids.count);
    if (update_.mean) factors_.resize(update_.ids.count);
    for (u64 bag = 0; bag < update_.bags; bag++) {
        const u64 begin = update_.offsets[bag], end = bag + 1 < update_.bags ? update_.offsets[bag + 1] : update_.ids.count;
        for (u64 at = begin; at < end; at++) {
            bag_of_[at] = u32(bag);
            if (update_.mean) factors_[at] = 1.0f / float(end - begin);
        }
    }
}

// Of maxima, only the rows that some number came from change.
void RowGradients::keep_winners() {
    std::vector<bool> won(update_.ids.count);
    for (u64 at = 0; at < update_.bags * dim_; at++)
        if (const std::int64_t position = update_.winners[at]; position >= 0) won.at(u64(position)) = true;
    std::vector<std::int64_t> ids;
    std::vector<u32> positions;
    for (u64 position = 0; position < won.size(); position++)
        if (won[position]) {
            ids.push_back(std::int64_t(update_.ids[position]));
            positions.push_back(u32(position));
        }
    order_ = in_order({ids.data(), true, ids.size()});
    for (Ordered& one : order_) one.position = positions[one.position];
}

void RowGradients::sum(u64 number, float* out) const {
    const u64 first = firsts_[number];
    const u32 count = u32(firsts_[number + 1] - first);
    if (!update_.winners) {
        kernels().bags[u32(RowType::float32)]({dim_, 4 * dim_, 2}, {at_.data() + first, &count, 1, weights_.empty() ? nullptr : weights_.data() + first, reinterpret_cast<char*>(out), 0},
                                              Pooling::sum);
        return;
    }
    std::fill_n(out, dim_, 0.0f);
    for (u64 at = first; at < first + count; at++) {
        const std::int64_t position = order_[at].position, *winners = update_.winners + bag_of_[u64(position)] * dim_;
        for (u64 column = 0; column < dim_; column++)
            if (winners[column] == position) out[column] += gradient(at)[column];
    }
}

static float as_float(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static std::string infinite_in(const float* values) {
    u64 column = 0;
    while (std::isfinite(values[column])) column++;
    return std::to_string(values[column]) + " in column " + std::to_string(column) + ": nothing was changed; leave the batch out, or pass finite=False to apply it";
}

double check_finite(const Update& update, u64 dim, const std::string& title) {
    if (update.any_number) return 0;
    u32 largest = 0;
    for (u64 at = 0; at < update.gradient_count; at++) {
        const float* gradient = update.gradients + at * update.stride;
        largest = std::max(largest, kernels().size(gradient, dim));
        if (largest >= INFINITE) throw Error(Code::bad_input, "gradient " + std::to_string(at) + " for the table '" + title + "' has " + infinite_in(gradient));
    }
    if (!update.weights) return double(as_float(largest));
    const u32 weight = kernels().size(update.weights, update.ids.count);
    if (weight >= INFINITE)
        throw Error(Code::bad_input, "the weights of a batch for the table '" + title + "' are not all finite: nothing was changed; pass finite=False to apply it");
    return double(as_float(largest)) * double(as_float(weight));
}

// Sums are computed twice only where the largest numbers of the batch could overflow.
void RowGradients::check() const {
    const double largest = check_finite(update_, dim_, title_);
    u64 most = 0;
    for (u64 number = 0; number < rows(); number++) most = std::max(most, firsts_[number + 1] - firsts_[number]);
    if (largest * double(most) < 1e38) return;
    std::vector<float> total(dim_);
    for (u64 number = 0; number < rows(); number++) {
        sum(number, total.data());
        if (kernels().size(total.data(), dim_) >= INFINITE)
            throw Error(Code::bad_input, "the gradients of row " + std::to_string(row(number)) + " of the table '" + title_ + "' add up to " + infinite_in(total.data()));
    }
}

}  // namespace osf::tables
