// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>

#include "app/session/session.h"

class QListWidget;

namespace bulkhead::ui {

/// The jobs of the daemon; the chosen one comes on screen.
class JobsDialog final : public QDialog {
    Q_OBJECT
  public:
    JobsDialog(Session& session, QWidget* parent);

  private:
    void fill();
    void choose();

    Session& session_;
    QListWidget* list_;
};

}  // namespace bulkhead::ui
