// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "tests/app/support/console.h"

namespace bulkhead::test {

/// A made-up campaign on the sample run that is on screen: it begins now and has gone on for
/// `steps` more steps when this returns. Nothing in it is measured.
void playCampaign(Console& console, int steps);

/// Its end, as the coordinator would tell it: it failed, because the run was cut short.
void endCampaign(Console& console);

}  // namespace bulkhead::test
