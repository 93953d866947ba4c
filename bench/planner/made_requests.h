// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/planner/data/routing.h"

namespace bulkhead::bench {

/// Requests of a model nobody has recorded for us, of about 330 tokens. In each layer a domain has
/// its own popularity of experts (Zipf 0.8 over a shuffled order, half shared by all domains), and
/// a token picks one of the domain's topics, whose 24 experts it prefers, so that experts go
/// together. `drift` 0..1 mixes the domains' popularity with that of another seed. Not a claim
/// about any model.
planner::Routing madeRequests(uint32_t layers, uint32_t experts, uint32_t topK, uint64_t tokens,
                              uint32_t domains, double drift, uint64_t seed);

}  // namespace bulkhead::bench
