// How long a step of an engine takes, from tables that Python made: of operators, of a roofline, or of measured kernels. Between points all is
// linear in each axis; beyond the last point it goes on with the last slope, before the first it is held.
#pragma once

#include <vector>

#include "base/base.hpp"

namespace osf::serving {

class Grid {                // of one to four axes, the last one fastest
public:
    Grid() = default;
    Grid(std::vector<std::vector<double>> axes, std::vector<double> values);
    double at(const double* where) const;
    bool empty() const { return values_.empty(); }
    u64 axes() const { return axes_.size(); }

private:
    std::vector<std::vector<double>> axes_;
    std::vector<double> values_;
};

struct Step {               // what is computed at once
    u32 tokens = 0;         // of all sequences
    u32 sampled = 0;        // sequences that get a token
    u32 prefill = 0;        // tokens of prompts
    double prefill_s = 0;   // attention of prompts, each by itself
    double prefill_work = 0;  // of prompts: tokens x mean tokens that they look at
    u32 decodes = 0;
    double context = 0;     // tokens that decodes look at, in all
};

struct StepTimes {
    Grid dense;             // by tokens: everything but attention and sampling, of all layers
    Grid sampling;          // by sequences that get a token
    Grid prefill;           // by tokens of a prompt in this step, and tokens before them
    Grid decode;            // by sequences, and tokens of each
    Grid mixed;             // what decodes take in a step with prompts, where it differs: by the four of both
    std::vector<u32> graphs;  // sizes of CUDA graphs, rising: a step of decodes is as large as the next of them
    double host_s = 0;      // a step, that nothing hides
    double host_sequence_s = 0;  // and for each sequence in it
    double eager_s = 0;     // a step without a graph

    void add_prefill(Step& step, u32 tokens, u32 before) const;
    double seconds(const Step& step) const;
};

}  // namespace osf::serving
