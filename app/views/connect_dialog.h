// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>

#include "app/session/recents.h"

class QLineEdit;
class QListWidget;

namespace bulkhead::ui {

/// An address, a token file and certificates, or one of the recents with how it went last time.
class ConnectDialog final : public QDialog {
    Q_OBJECT
  public:
    ConnectDialog(Recents& recents, QWidget* parent);
    Recent chosen() const;

  private:
    void fill();
    void forgetSelected();

    Recents& recents_;
    QLineEdit* target_;
    QLineEdit* token_;
    QLineEdit* certs_;
    QListWidget* list_;
};

}  // namespace bulkhead::ui
