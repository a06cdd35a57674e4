#include "serving/step_time.hpp"

#include <algorithm>

namespace osf::serving {

Grid::Grid(std::vector<std::vector<double>> axes, std::vector<double> values) : axes_(std::move(axes)), values_(std::move(values)) {
    u64 size = 1;
    for (const auto& axis : axes_) {
        if (axis.empty() || !std::is_sorted(axis.begin(), axis.end())) throw Error(Code::bad_input, "an axis of a table of times is empty, or not in order");
        size *= axis.size();
    }
    if (axes_.empty() || axes_.size() > 4 || size != values_.size())
        throw Error(Code::bad_input, "a table of times has " + std::to_string(values_.size()) + " values; its axes need " + std::to_string(size));
}

double Grid::at(const double* where) const {
    u64 base = 0, step[4];
    double share[4];
    const u64 count = axes_.size();
    u64 stride = values_.size();
    for (u64 at = 0; at < count; at++) {
        const auto& axis = axes_[at];
        stride /= axis.size();
        step[at] = 0, share[at] = 0;
        if (axis.size() == 1) continue;
        const double x = std::max(where[at], axis[0]);
        u64 low = u64(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin());
        low = std::min<u64>(std::max<u64>(low, 1), axis.size() - 1) - 1;
        share[at] = (x - axis[low]) / (axis[low + 1] - axis[low]);
        step[at] = stride;
        base += low * stride;
    }
    double sum = 0;
    for (u64 corner = 0; corner < u64(1) << count; corner++) {
        double weight = 1;
        u64 from = base;
        for (u64 at = 0; at < count; at++) {
            const bool high = corner >> at & 1;
            weight *= high ? share[at] : 1 - share[at];
            if (high) from += step[at];
        }
        if (weight != 0) sum += weight * values_[from];
    }
    return std::max(sum, 0.0);
}

void StepTimes::add_prefill(Step& step, u32 tokens, u32 before) const {
    const double where[2] = {double(tokens), double(before)};
    step.tokens += tokens;
    step.prefill += tokens;
    step.prefill_s += prefill.at(where);
    step.prefill_work += double(tokens) * (double(before) + double(tokens) / 2);
}

double StepTimes::seconds(const Step& step) const {
    double tokens = step.tokens, time = host_s + host_sequence_s * step.sampled;
    const bool graph = !step.prefill && !graphs.empty() && step.tokens <= graphs.back();
    if (graph) tokens = *std::lower_bound(graphs.begin(), graphs.end(), step.tokens);
    else time += eager_s;
    time += dense.at(&tokens) + step.prefill_s;
    const double sampled = step.sampled;
    if (step.sampled) time += sampling.at(&sampled);
    if (!step.decodes) return time;
    const double mean = step.context / step.decodes;
    if (step.prefill && !mixed.empty()) {
        const double prompt = step.prefill, before = std::max(0.0, step.prefill_work / prompt - prompt / 2);
        const double where[4] = {prompt, before, double(step.decodes), mean};
        return time + mixed.at(where);
    }
    const double where[2] = {double(step.decodes), mean};
    return time + decode.at(where);
}

}  // namespace osf::serving
