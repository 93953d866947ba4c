// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <vector>

namespace bulkhead::ui {

class View;
struct ViewContext;

/// Place of a page in the default arrangement.
enum class Place {
    kLeft,   ///< current activity, one below the other
    kRight,  ///< analysis and actions, as tabs
};

/// The one list of pages: docks, their arrangement, the View menu, number keys and pictures are
/// made from it. A page that comes later is one line here.
struct Page {
    Place place;
    View* (*make)(ViewContext& context);
};

const std::vector<Page>& pages();

}  // namespace bulkhead::ui
