// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <Qt>

namespace bulkhead::ui {

/// Roles of our models in addition to Qt's.
enum Role {
    kToneRole = Qt::UserRole + 1,  ///< int of Tone: how the text is coloured
    kPillRole,                     ///< bool: draw the text behind a coloured dot
    kStateRole,                    ///< int of model::ReplicaState, where the row has one
    kReplicaRole,                  ///< int, -1 for none
    kNodeRole,                     ///< QString: name of the node the row is on, or is
    kShardRole,                    ///< int, -1 for a whole replica
    kTimeRole,                     ///< qint64 Unix nanoseconds
    kIdRole,                       ///< qulonglong or QString naming the row's object
    kSortRole,                     ///< sort key
    kRoutineRole,                  ///< bool: an event that the log hides by default
};

}  // namespace bulkhead::ui
