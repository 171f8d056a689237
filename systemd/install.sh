#!/bin/sh
# Install or remove Rechannel as systemd services. `make install` and `make uninstall` call this script.
#
#   install.sh install [--no-venv]      --no-venv: without the program itself, for packages that bring their own
#   install.sh uninstall [--purge]      --purge: also /etc/rechannel, /var/log/rechannel, and drop-ins and replacements of
#                                       the units
#
# Variables: PREFIX (/opt/rechannel; used by Rechannel alone), DESTDIR (prefix of every path; nothing outside it changes),
# BINDIR (/usr/local/bin), LIBDIR (/usr/lib; contains the directories of systemd), AGENT_USER (the installed one, or else
# spark), PYTHON (python3), ROLE (all; agent: only the light distribution and the agent's unit), PURGE=1 and NO_VENV=1
# like the options.
set -eu
umask 022 # the services' users have to enter every directory that is made here, also where root's own umask is 077

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
destdir=${DESTDIR:-}
destdir=${destdir%/}
prefix=${PREFIX:-/opt/rechannel}
bindir=${BINDIR:-/usr/local/bin}
libdir=${LIBDIR:-/usr/lib}
# An upgrade keeps the user that the agent was installed with.
installed_unit=$destdir$libdir/systemd/system/rechannel-agent.service
agent_user=${AGENT_USER:-$(sed -n 's/^User=//p' "$installed_unit" 2>/dev/null || true)}
agent_user=${agent_user:-spark}
confdir=/etc/rechannel
logdir=/var/log/rechannel
home=$destdir$prefix
marker=$home/.installed-files # lists files outside $prefix; without it $prefix is not removed
role=${ROLE:-all}
units='rechannel-controller.service rechannel-agent.service'

say() { printf 'rechannel: %s\n' "$1"; }
fail() {
    printf 'rechannel: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf 'rechannel: cure: %s\n' "$2" >&2
    exit 1
}

# Whether to act on the running system, with systemd as its first process.
is_live() { [ -z "$destdir" ] && [ -d /run/systemd/system ]; }

check_paths() {
    for path in "$prefix" "$bindir" "$libdir" "${destdir:-/}"; do
        case $path in
        *[!A-Za-z0-9._/+@-]* | *..*) fail "$path: only letters, digits and ._/+@- may be in a path here" "choose another one" ;;
        /*) ;;
        *) fail "$path: is no absolute path" "begin it with /" ;;
        esac
    done
    prefix=${prefix%/}
    home=$destdir$prefix
    marker=$home/.installed-files
    case $role in
    all | agent) ;;
    *) fail "ROLE: '$role' is no role" "write all or agent" ;;
    esac
    case $agent_user in
    '' | *[!A-Za-z0-9._-]*) fail "AGENT_USER: '$agent_user' is no user name" "name Spark's user" ;;
    esac
    case $prefix in
    '' | /usr | /usr/local | /opt | /etc | /var | /home | /root)
        fail "PREFIX=$prefix: has to be a directory of Rechannel's own, as it is removed again" "PREFIX=/opt/rechannel"
        ;;
    esac
    if [ -z "$destdir" ] && [ "$(id -u)" -ne 0 ]; then
        fail "root's rights are needed" "run it as root, or stage it with DESTDIR=DIRECTORY"
    fi
}

# Copy file $1 to $2 below DESTDIR with mode $3, atomically.
put() {
    mkdir -p "$destdir$(dirname "$2")"
    cp "$1" "$destdir$2.new"
    chmod "$3" "$destdir$2.new"
    mv -f "$destdir$2.new" "$destdir$2"
}

# Print a unit with the paths and the user of this installation.
unit() {
    sed -e "s|/opt/rechannel/|$prefix/|g" -e "s|^User=spark\$|User=$agent_user|" "$root/systemd/$1"
}

find_python() {
    for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

# Build the program in $work/venv with the paths of $prefix. The checkout is not changed.
build_venv() {
    python=$(find_python) || fail "Python 3.11 or later with venv was not found" \
        "install it, or name it: PYTHON=/path/to/python3.11"
    source=$work/source
    mkdir -p "$source/src/rechannel"
    for file in pyproject.toml setup.py README.md LICENSE constraints.txt; do
        [ ! -e "$root/$file" ] || cp "$root/$file" "$source/"
    done
    cp -P "$root"/src/rechannel/* "$source/src/rechannel/" 2>/dev/null || true # skips the directory __pycache__
    for part in "$source"/src/rechannel/*; do
        [ ! -L "$part" ] || cp -R "$root/$(basename "$part")" "$source/"
    done
    cp -RP "$root/distributions" "$source/"
    find "$source" -name __pycache__ -type d -prune -exec rm -rf {} +
    project=$source
    [ "$role" != agent ] || project=$source/distributions/agent
    "$python" -m venv "$work/venv"
    constraints=
    [ ! -f "$source/constraints.txt" ] || constraints="-c $source/constraints.txt"
    # shellcheck disable=SC2086 # the paths contain no spaces: checked above
    "$work/venv/bin/python" -m pip install --disable-pip-version-check --no-cache-dir -q $constraints "$project"
    # Scripts contain the path of their interpreter.
    for file in "$work"/venv/bin/* "$work/venv/pyvenv.cfg"; do
        if [ -f "$file" ] && [ ! -L "$file" ] && grep -qI "$work/venv" "$file"; then
            sed -i "s|$work/venv|$prefix|g" "$file"
        fi
    done
}

install_all() {
    check_paths
    if [ -e "$home" ] && [ ! -e "$marker" ] && [ -n "$(ls -A "$home")" ]; then
        fail "$home exists and is not from this installer" "choose another PREFIX, or move it away"
    fi
    link=$destdir$bindir/rechannel
    if { [ -e "$link" ] || [ -L "$link" ]; } && [ "$(readlink "$link")" != "$prefix/bin/rechannel" ]; then
        fail "$link exists and is not from this installer" "choose another BINDIR, or move it away"
    fi
    if [ "$role" = agent ]; then
        units=rechannel-agent.service
        [ ! -e "$destdir$libdir/systemd/system/rechannel-controller.service" ] ||
            fail "a controller is installed here" "make uninstall first, or leave ROLE=agent out"
    fi
    # Before the program is replaced: otherwise it would be new, and its units old.
    for path in "$libdir" "$bindir"; do
        { mkdir -p "$destdir$path" 2>/dev/null && [ -w "$destdir$path" ]; } ||
            fail "$destdir$path: cannot be written" "where /usr is read-only: LIBDIR=/etc BINDIR=/opt/bin"
    done
    mkdir -p "$(dirname "$home")"
    work=$home.new # on the same file system, for an atomic rename
    rm -rf "$work"
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/venv"
    [ -n "$no_venv" ] || build_venv

    share=$work/venv/share
    mkdir -p "$share/doc/rechannel" "$share/rechannel"
    cp "$root/README.md" "$root/CHANGELOG.md" "$root/LICENSE" "$root"/docs/*.md "$share/doc/rechannel/"
    cp -R "$root/docs/images" "$root/docs/decisions" "$share/doc/rechannel/"
    mkdir -p "$share/doc/rechannel/figures"
    cp "$root"/docs/figures/*.svg "$share/doc/rechannel/figures/"
    cp -R "$root/conf/alerts" "$root/conf/grafana" "$root/conf/rechannel.toml" "$share/rechannel/"
    mkdir "$share/rechannel/systemd" # with these `rechannel doctor --machine` compares the installed units
    for name in $units; do unit "$name" >"$share/rechannel/systemd/$name"; done
    {
        for name in $units; do printf '%s\n' "$libdir/systemd/system/$name"; done
        printf '%s\n' "$libdir/sysusers.d/rechannel.conf" "$libdir/tmpfiles.d/rechannel.conf" "$bindir/rechannel"
        [ "$role" = agent ] || printf '%s\n' "$libdir/tmpfiles.d/rechannel-controller.conf"
        # Files of an earlier installation with other directories are removed with this one.
        [ ! -e "$marker" ] || cat "$marker"
    } | sort -u >"$work/venv/.installed-files"
    chmod -R u=rwX,go=rX "$work/venv"

    # An unchanged example is replaced by the new one.
    toml=$destdir$confdir/rechannel.toml
    fresh=
    if [ ! -e "$toml" ] || cmp -s "$toml" "$home/share/rechannel/rechannel.toml"; then fresh=yes; fi

    if [ -e "$home" ]; then mv "$home" "$work/old"; fi
    if ! mv "$work/venv" "$home"; then
        [ ! -e "$work/old" ] || mv "$work/old" "$home"
        fail "$home: could not be written"
    fi
    for name in $units; do
        put "$home/share/rechannel/systemd/$name" "$libdir/systemd/system/$name" 644
    done
    put "$root/systemd/rechannel.tmpfiles" "$libdir/tmpfiles.d/rechannel.conf" 644
    if [ "$role" = all ]; then
        put "$root/systemd/rechannel.sysusers" "$libdir/sysusers.d/rechannel.conf" 644
        put "$root/systemd/rechannel-controller.tmpfiles" "$libdir/tmpfiles.d/rechannel-controller.conf" 644
    fi
    ln -sf "$prefix/bin/rechannel" "$link"
    [ -z "$fresh" ] || put "$root/conf/rechannel.toml" "$confdir/rechannel.toml" 644

    if [ -z "$destdir" ]; then
        if [ "$role" = all ] && command -v systemd-sysusers >/dev/null 2>&1; then
            systemd-sysusers "$libdir/sysusers.d/rechannel.conf"
        fi
        if command -v systemd-tmpfiles >/dev/null 2>&1; then
            systemd-tmpfiles --create "$libdir"/tmpfiles.d/rechannel*.conf
        fi
        # systemd would restart a service with an unknown user without end (217/USER).
        getent passwd "$agent_user" >/dev/null ||
            say "there is no user $agent_user, so no agent can start here; set AGENT_USER if Spark runs as another user"
    fi
    if is_live; then
        systemctl daemon-reload
        for name in $units; do
            ! systemctl is-active -q "$name" || say "$name runs the old version until: systemctl restart $name"
        done
    fi
    if [ "$role" = agent ]; then
        say "installed in $home; next: $confdir/rechannel.toml, then systemctl enable --now rechannel-agent"
    else
        say "installed in $home; next: $confdir/rechannel.toml and keys, then systemctl enable --now rechannel-controller"
        say "(or rechannel-agent, on nodes with executors)"
    fi
    say "$prefix/share/doc/rechannel/services.md has the details"
}

uninstall_all() {
    check_paths
    if [ -e "$marker" ]; then
        if is_live; then
            for name in $units; do
                [ ! -e "$libdir/systemd/system/$name" ] || systemctl disable --now -q "$name" ||
                    say "$name could not be stopped; it is removed anyway"
            done
        fi
        toml=$destdir$confdir/rechannel.toml
        if cmp -s "$toml" "$home/share/rechannel/rechannel.toml"; then rm -f "$toml"; fi
        while IFS= read -r file; do
            case $file in
            */bin/rechannel | "$bindir/rechannel")
                [ "$(readlink "$destdir$file")" != "$prefix/bin/rechannel" ] || rm -f "$destdir$file"
                ;;
            */rechannel*.service | */rechannel*.conf) rm -f "$destdir$file" ;;
            esac
            prune "$(dirname "$file")"
        done <"$marker"
        rm -rf "$home"
        prune "$(dirname "$prefix")"
    elif [ -z "$purge" ]; then
        say "nothing is installed in $home"
    fi
    for name in $units; do
        # `systemctl edit` writes the directory, `systemctl edit --full` a file that replaces the installed unit.
        for path in "$destdir/etc/systemd/system/$name" "$destdir/etc/systemd/system/$name.d"; do
            if [ -n "$purge" ]; then
                rm -rf "$path"
            elif [ -e "$path" ] || [ -L "$path" ]; then
                say "kept: $path (PURGE=1 removes it)"
            fi
        done
    done
    prune /etc/systemd/system
    ! is_live || systemctl daemon-reload
    for directory in "$confdir" "$logdir"; do
        if [ -n "$purge" ]; then
            rm -rf "$destdir$directory"
        elif [ -d "$destdir$directory" ]; then
            rmdir "$destdir$directory" 2>/dev/null || say "kept: $destdir$directory (PURGE=1 removes it)"
        fi
        prune "$(dirname "$directory")"
    done
    remove_user
}

# With DESTDIR: remove empty directories up to DESTDIR. Without it, directories belong to the system.
prune() {
    directory=$1
    while [ -n "$destdir" ] && [ "$directory" != / ] && rmdir "$destdir$directory" 2>/dev/null; do
        directory=$(dirname "$directory")
    done
    return 0
}

# Remove the user that sysusers created once its directories are gone; keep other users of the same name.
remove_user() {
    [ -z "$destdir" ] && [ ! -e "$confdir" ] && [ ! -e "$logdir" ] || return 0
    [ "$(getent passwd rechannel | cut -d: -f5)" = 'Rechannel controller' ] || return 0
    userdel rechannel || say "the user rechannel could not be removed"
    ! getent group rechannel >/dev/null || groupdel rechannel || say "the group rechannel could not be removed"
}

action=${1:-}
[ $# -eq 0 ] || shift
no_venv=${NO_VENV:-}
purge=${PURGE:-}
[ "$no_venv" != 0 ] || no_venv=
[ "$purge" != 0 ] || purge=
for option in "$@"; do
    case $action$option in
    install--no-venv) no_venv=yes ;;
    uninstall--purge) purge=yes ;;
    *) fail "$option: no such option of $action" "see the head of systemd/install.sh" ;;
    esac
done
case $action in
install) install_all ;;
uninstall) uninstall_all ;;
*) fail "no action given" "install.sh install [--no-venv] | uninstall [--purge]" ;;
esac
